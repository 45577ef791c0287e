// Package client speaks /api/v1 from Go, as the command line and the tests do.
//
// [New] gives a [Client], which has a method an operation, sends the token,
// renews it when it is over, and repeats what may be repeated when the server
// does not answer or asks to come back later. Errors are a *[Problem] (the
// server's answer), an *[UnreachableError] (there was none) or the context's.
//
// The types of the wire are generated from api/openapi.yaml.
package client

//go:generate go tool -modfile=../../tools/go.mod oapi-codegen --config oapi-codegen.yaml ../../api/openapi.yaml
