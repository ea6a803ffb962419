package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"

	"github.com/hawser-transport/hawser/engine"
)

// The cache of one request: so many blocks of so many bytes.
const (
	blocks    = 32
	blockSize = 256 << 10
)

// manifest tells where a request's blocks are, one after the other, in the
// sender's memory, and what is in them.
type manifest struct {
	Request   string   `json:"request"`
	Address   uint64   `json:"address"`
	BlockSize uint64   `json:"block_size"`
	Checksums []uint32 `json:"checksums"`
	// Capability is the region's identity: memory that has the address in a
	// later life is not taken for it.
	Capability engine.Capability `json:"capability"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Names of notifications.
const (
	kvReady = "kv-ready" // a manifest
	kvRead  = "kv-read"  // a request's name: its blocks have been read
)

// runPrefill computes a cache, hands it to a decode process, and takes its
// memory back.
func runPrefill(ctx context.Context, plugins, gpu, peer string, n network) error {
	at, err := choose(gpu, 0)
	if err != nil {
		return err
	}
	defer at.close()
	e, err := open(ctx, "prefill-0", plugins, at, n)
	if err != nil {
		return err
	}
	defer shut(e)
	// A notification waits for its peer until its deadline: it may be starting.
	// Here it has to be there.
	segment, err := e.OpenSegment(ctx, peer)
	if err != nil {
		return err
	}
	defer segment.Close() //nolint:errcheck // it returns nil
	fmt.Printf("prefill-0 keeps its blocks in %v\n", at)

	// A region is memory that the transports' processes share. Peers may only
	// read this one.
	cache, err := at.allocate(e, blocks*blockSize, engine.RegionOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	m := manifest{Request: "request 17", Address: cache.Address(), BlockSize: blockSize, Capability: cache.Capability()}
	block := make([]byte, blockSize)
	for i := range blocks {
		m.Checksums = append(m.Checksums, compute(block, i))
		if err := cache.put(block, uint64(i)*blockSize); err != nil {
			return err
		}
	}
	if err := offer(ctx, e, peer, m); err != nil {
		return err
	}
	// nil means that nothing can read the memory any more: it may be used for
	// something else.
	if err := cache.free(ctx); err != nil {
		return err
	}
	fmt.Printf("prefill-0 has its %d blocks back\n", blocks)
	return nil
}

// compute stands for the model: it fills a block, and returns its checksum.
func compute(block []byte, seed int) uint32 {
	x := uint32(seed)
	for i := range block {
		x = x*1664525 + 1013904223
		block[i] = byte(x >> 24)
	}
	return crc32.Checksum(block, castagnoli)
}

// offer tells a decode process of blocks, and returns once it has read them.
func offer(ctx context.Context, e *engine.Engine, peer string, m manifest) error {
	payload, err := json.Marshal(m)
	if err != nil {
		return err
	}
	ready, err := e.Notify(ctx, peer, engine.Notification{Name: kvReady, Payload: payload})
	if err != nil {
		return err
	}
	if err := ready.Wait(ctx); err != nil {
		return err
	}
	answer, err := e.Receive(ctx)
	if err != nil {
		return fmt.Errorf("no answer of %s: %w", peer, err)
	}
	if answer.Name != kvRead || string(answer.Payload) != m.Request {
		return fmt.Errorf("%s answered %s: %s", peer, answer.Name, answer.Payload)
	}
	return nil
}
