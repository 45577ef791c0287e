// Package httpapi serves /api/v1, the public API, as api/openapi.yaml
// describes it: one file a resource.
package httpapi

//go:generate go tool -modfile=../../tools/go.mod oapi-codegen --config oapi-codegen.yaml ../../api/openapi.yaml
