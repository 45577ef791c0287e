// Package api holds the OpenAPI document of /api/v1: the source of the public
// API. Server and client types are generated from it, requests are validated
// against it, and the role that each route asks for stands in it.
package api

import _ "embed"

// Document is openapi.yaml.
//
//go:embed openapi.yaml
var Document []byte
