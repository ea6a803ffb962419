// Package bootstrap is how the two ends of a stream transport find each other:
// the offer and the answer that the engines carry, the join message that the
// dialing side presents on its connection, and the table of those that an
// accepting side still expects.
//
// An endpoint's identity is two random tokens, one of each side, and the
// generation; a connection is given to an endpoint only if it presents all of
// them. The package does no I/O. Everything it parses comes from a peer and is
// validated here.
package bootstrap
