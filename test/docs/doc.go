// Package docs holds the documents to the code: links lead somewhere, blocks
// that show a file show it as it is, bytes and keys and numbers are those that
// the code has, and named tests and make targets exist. What a sentence says
// it cannot check.
//
// `go test ./test/docs -update` rewrites what is generated.
package docs
