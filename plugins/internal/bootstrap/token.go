package bootstrap

import (
	"crypto/rand"
	"crypto/subtle"
)

// Token is 128 random bits, drawn for one endpoint by one of its sides.
type Token [16]byte

// NewToken draws a token.
func NewToken() Token {
	var t Token
	// Read never returns an error: it ends the process if there is no
	// randomness.
	_, _ = rand.Read(t[:])
	return t
}

// equal takes the same time whatever differs, since tokens are secrets.
func (t Token) equal(u Token) bool { return subtle.ConstantTimeCompare(t[:], u[:]) == 1 }
