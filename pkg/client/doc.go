// Package client speaks /api/v1 from Go, as the command line and the tests do.
package client

//go:generate go tool -modfile=../../tools/go.mod oapi-codegen --config oapi-codegen.yaml ../../api/openapi.yaml
