// Package httpapi serves /api/v1, the public API, as api/openapi.yaml
// describes it: one file a resource.
//
// A request passes, in this order: the role table (pkg/identity), which is read
// from the document's x-berth-role; the validator, which refuses what the
// document does not describe, with every fault at once; the generated binding;
// the handler. Handlers return errors of pkg/berth; package problem alone makes
// them into documents.
//
// Payloads and results are handed to those who may see the task, and are in no
// log line and no error.
package httpapi

//go:generate go tool -modfile=../../tools/go.mod oapi-codegen --config oapi-codegen.yaml ../../api/openapi.yaml
