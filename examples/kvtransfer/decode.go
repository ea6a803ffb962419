package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/hawser-transport/hawser/engine"
)

// listening begins the line that tells the address.
const listening = "decode-0 is at "

// runDecode serves one request.
func runDecode(ctx context.Context, plugins, gpu string, n network) error {
	at, err := choose(gpu, 1)
	if err != nil {
		return err
	}
	defer at.close()
	e, err := open(ctx, "decode-0", plugins, at, n)
	if err != nil {
		return err
	}
	defer shut(e)
	fmt.Println(listening + e.Self().Address)
	fmt.Printf("decode-0 keeps its blocks in %v\n", at)
	return serveOne(ctx, e, at)
}

// serveOne waits for a notification, does what it asks for, and answers.
func serveOne(ctx context.Context, e *engine.Engine, at *place) error {
	got, err := e.Receive(ctx)
	if err != nil {
		return err
	}
	result := engine.Notification{Name: kvRead}
	if result.Payload, err = serve(ctx, e, at, got); err != nil {
		result = engine.Notification{Name: "kv-failed", Payload: []byte(err.Error())}
	}
	answer, failed := e.Notify(ctx, got.From.Address, result)
	if failed == nil {
		failed = answer.Wait(ctx)
	}
	if err == nil {
		err = failed
	}
	return err
}

// serve reads the blocks that a notification tells of, and returns the name of
// their request.
func serve(ctx context.Context, e *engine.Engine, at *place, got *engine.Received) ([]byte, error) {
	m, size, err := parse(got)
	if err != nil {
		return nil, err
	}
	// Nobody else is to use this memory.
	local, err := at.allocate(e, size, engine.RegionOptions{Private: true})
	if err != nil {
		return nil, err
	}
	err = at.explain(once(read(ctx, e, got.From.Address, local.Region, m)))
	if err == nil {
		err = check(local, m)
	}
	if err := errors.Join(err, local.free(ctx)); err != nil {
		return nil, err
	}
	fmt.Printf("decode-0 read %d blocks, %d MiB, of %s from %s\n", len(m.Checksums), size>>20, m.Request, got.From.Name)
	return []byte(m.Request), nil
}

// maxCache is the most that this process reads of a request.
const maxCache = 1 << 30

// parse returns a manifest and the bytes that it is about.
func parse(got *engine.Received) (m manifest, size int, err error) {
	if got.Name != kvReady {
		return m, 0, fmt.Errorf("%s sent %q, not %s", got.From.Name, got.Name, kvReady)
	}
	if err := json.Unmarshal(got.Payload, &m); err != nil {
		return m, 0, fmt.Errorf("the manifest of %s: %w", got.From.Name, err)
	}
	n := uint64(len(m.Checksums))
	if n == 0 || m.BlockSize == 0 || m.BlockSize > maxCache/n {
		return m, 0, fmt.Errorf("%s has %d blocks of %d bytes: not 1 to %d bytes", m.Request, n, m.BlockSize, maxCache)
	}
	return m, int(n * m.BlockSize), nil
}

// read copies a request's blocks into a region, each by an op of its own, in one
// transfer.
func read(ctx context.Context, e *engine.Engine, peer string, local *engine.Region, m manifest) error {
	segment, err := e.OpenSegment(ctx, peer)
	if err != nil {
		return err
	}
	defer segment.Close() //nolint:errcheck // it returns nil
	ops := make([]engine.Op, len(m.Checksums))
	for i := range ops {
		at := uint64(i) * m.BlockSize
		ops[i] = engine.Op{
			Kind: engine.Read, Local: local, LocalOffset: at,
			Segment: segment, Address: m.Address + at, Capability: m.Capability, Length: m.BlockSize,
		}
	}
	transfer, err := e.Submit(ctx, ops, engine.SubmitOptions{})
	if err != nil {
		return err
	}
	// Wait returns nil once every byte is there, and an error that says of each
	// op whether its memory may still be touched.
	return transfer.Wait(ctx)
}

// once says why blocks were not read: of the first one, since the others mostly
// have the same reason.
func once(err error) error {
	var failed *engine.TransferError
	if errors.As(err, &failed) && len(failed.Errors) > 0 {
		return fmt.Errorf("%d of %d blocks were not read: %w", failed.Failed, failed.Ops, failed.Errors[0])
	}
	return err
}

// check compares blocks with what the manifest says of them.
func check(cache *memory, m manifest) error {
	block := make([]byte, m.BlockSize)
	for i, want := range m.Checksums {
		if err := cache.get(block, uint64(i)*m.BlockSize); err != nil {
			return err
		}
		if got := crc32.Checksum(block, castagnoli); got != want {
			return fmt.Errorf("block %d of %s has checksum %08x, not %08x", i, m.Request, got, want)
		}
	}
	return nil
}
