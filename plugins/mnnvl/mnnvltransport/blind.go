//go:build linux && !hawser_address_only

package mnnvltransport

// addressOnly would find a peer's mapping by its address alone, as if there were
// no capabilities: nothing is withdrawn, and the next life of a provider is the
// one before. Only a build for tests does, which shows that they can see old
// bytes.
const addressOnly = false
