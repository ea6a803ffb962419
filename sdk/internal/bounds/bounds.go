// Package bounds holds the limits that both ends of a plugin's process
// boundary agree on: what a plugin may make its host keep, and the largest
// message on each channel. A limit names what it bounds, so that an error can
// say which one was broken.
package bounds

import (
	"fmt"
	"strings"
)

// What a plugin or a peer can make grow, at most.
const (
	// AttributeEntries and AttributeBytes bound what is published to peers.
	AttributeEntries = 64
	AttributeBytes   = 16 << 10
	// Paths and PathBytes bound the ways to one peer.
	Paths     = 64
	PathBytes = 512
	// BootstrapBytes bounds an offer and an answer.
	BootstrapBytes = 64 << 10
	// Listeners is what one record of files carries.
	Listeners = 16
	// RegionFiles is how many regions' files may wait on the plugin's side of
	// the link for the calls that name them.
	RegionFiles = 64
	// LocalPaths and TextBytes bound what is shown to people: local paths,
	// error texts, names and versions.
	LocalPaths = 256
	TextBytes  = 4 << 10
	// SettingsBytes bounds the user's config object.
	SettingsBytes = 512 << 10
	// SchemaBytes and Features bound a description.
	SchemaBytes = 256 << 10
	Features    = 64
	// KeysBytes and KeysAllow bound the keys of a transport.
	KeysBytes = 256 << 10
	KeysAllow = 4096
)

// minRecord leaves room for packed completions and texts where frames are
// small.
const minRecord = 64 << 10

// MaxRecord is the largest payload of a record on the link of a transport
// with frames of at most maxFrame bytes.
func MaxRecord(maxFrame int) int { return max(maxFrame, minRecord) }

// MaxMessage is the largest gRPC message, both ways: a packet of records, and
// room for everything else above.
func MaxMessage(maxFrame int) int { return MaxRecord(maxFrame) + 1<<20 }

// CheckAttributes says which limit the attributes break, if any.
func CheckAttributes(attrs map[string]string) error {
	if len(attrs) > AttributeEntries {
		return fmt.Errorf("%d attributes, the limit is %d", len(attrs), AttributeEntries)
	}
	n := 0
	for k, v := range attrs {
		n += len(k) + len(v)
	}
	if n > AttributeBytes {
		return fmt.Errorf("%d bytes of attributes, the limit is %d", n, AttributeBytes)
	}
	return nil
}

// CheckBootstrap says whether a bootstrap message, an "offer" or an "answer",
// is too long.
func CheckBootstrap(what string, message []byte) error {
	if len(message) > BootstrapBytes {
		return fmt.Errorf("%s of %d bytes, the limit is %d", what, len(message), BootstrapBytes)
	}
	return nil
}

// CheckSettings says whether the user's config object is too long.
func CheckSettings(settings []byte) error {
	if len(settings) > SettingsBytes {
		return fmt.Errorf("settings of %d bytes, the limit is %d", len(settings), SettingsBytes)
	}
	return nil
}

// CheckKeys says which limit keys of so many bytes in all and so many names
// break, if any.
func CheckKeys(n, allow int) error {
	if n > KeysBytes {
		return fmt.Errorf("keys of %d bytes, the limit is %d", n, KeysBytes)
	}
	if allow > KeysAllow {
		return fmt.Errorf("keys for %d names, the limit is %d", allow, KeysAllow)
	}
	return nil
}

// Text cuts a text for people to its limit, and makes it valid UTF-8, which
// protobuf demands and C libraries do not always deliver.
func Text(s string) string {
	if len(s) > TextBytes {
		s = s[:TextBytes]
	}
	return strings.ToValidUTF8(s, "")
}
