package sdk

import "slices"

// The checks of this file are for whoever takes limits, regions and ops from
// somebody else: the engine, both ends of a plugin's process boundary, and
// transports. Their errors have codes, as a [Completion] wants them.

// Check returns an error with code [InvalidArgument] unless the limits are
// within their bounds. Zero fields, which stand for defaults, are.
func (l MoveLimits) Check() error {
	const most = 1 << 30
	switch {
	case l.MaxOp < 0 || l.MaxOp > MaxOpLimit:
		return Errorf(InvalidArgument, "MaxOp %d is not within 0..%d", l.MaxOp, MaxOpLimit)
	case l.Inflight < 0 || l.Inflight > most || l.InflightBytes < 0 || l.InflightBytes > most:
		return Errorf(InvalidArgument, "%d ops and %d bytes in flight are not within 0..%d", l.Inflight, l.InflightBytes, most)
	case l.Parallel < 0 || l.Parallel > MaxParallel:
		return Errorf(InvalidArgument, "Parallel %d is not within 0..%d", l.Parallel, MaxParallel)
	}
	for _, kinds := range [][]MemoryKind{l.Local, l.Remote} {
		for i, k := range kinds {
			if !k.Valid() || slices.Contains(kinds[:i], k) {
				return Errorf(InvalidArgument, "%v is listed twice, or no kind of memory", k)
			}
		}
	}
	return nil
}

// ParseOp reads an op from a frame that an endpoint for memory was given, and
// checks it against the limits of the transport. The error, whose code is
// [InvalidArgument], is that of a Completion with [NotPosted].
func (l MoveLimits) ParseOp(frame []byte) (Op, error) {
	l = l.WithDefaults()
	o, err := ParseOp(frame)
	switch {
	case err != nil:
		return Op{}, Errorf(InvalidArgument, "%w", err)
	case o.Length > uint64(l.MaxOp):
		return Op{}, Errorf(InvalidArgument, "op of %d bytes, the limit is %d", o.Length, l.MaxOp)
	case o.Kind == Flush && !l.NeedsFlush:
		return Op{}, Errorf(InvalidArgument, "a flush, which this transport does not need")
	}
	return o, nil
}

// Check returns an error with code [InvalidArgument] unless the region is as
// the comments of its fields say. It does not look into File.
func (r *Region) Check() error {
	host := r.Kind == HostMemory
	withFile := host || r.HandleKind == FileHandle
	handle := HandleBytes
	if withFile {
		handle = 0
	}
	switch {
	case r.Capability.IsZero():
		return Errorf(InvalidArgument, "a region without a capability")
	case !r.Kind.Valid() || !r.HandleKind.Valid():
		return Errorf(InvalidArgument, "region %v: %v, exported as %v", r.Capability, r.Kind, r.HandleKind)
	case host != (r.HandleKind == NoHandle):
		return Errorf(InvalidArgument, "region %v: %v memory exported as %v", r.Capability, r.Kind, r.HandleKind)
	case withFile != (r.File != nil):
		return Errorf(InvalidArgument, "region %v: %v memory exported as %v with file %t", r.Capability, r.Kind, r.HandleKind, r.File != nil)
	case len(r.Handle) != handle:
		return Errorf(InvalidArgument, "region %v: a handle of %d bytes, it has %d", r.Capability, len(r.Handle), handle)
	case r.Offset+r.Length < r.Length || !host && r.Offset+r.Length > r.Allocation:
		return Errorf(InvalidArgument, "region %v: %d bytes at %d are not within the allocation of %d", r.Capability, r.Length, r.Offset, r.Allocation)
	case host && r.Allocation != 0 || r.Device < 0:
		return Errorf(InvalidArgument, "region %v: device %d, allocation of %d bytes", r.Capability, r.Device, r.Allocation)
	}
	return checkExtent(r.Capability, r.Base, r.Length)
}

// Check returns an error with code [InvalidArgument] unless the region is as
// the comments of its fields say.
func (r *RemoteRegion) Check() error {
	switch {
	case r.Provider.IsZero():
		return Errorf(InvalidArgument, "region %v of no provider", r.Capability)
	case !r.Kind.Valid():
		return Errorf(InvalidArgument, "region %v of %v: %v", r.Capability, r.Provider.Short(), r.Kind)
	}
	return checkExtent(r.Capability, r.Base, r.Length)
}

func checkExtent(c Capability, base, length uint64) error {
	if length == 0 || base+length < length {
		return Errorf(InvalidArgument, "region %v: %d bytes at %#x are none, or wrap", c, length, base)
	}
	return nil
}

// Admit returns an error unless length bytes at offset of the region may be
// read, or, with write, written to: with code [InvalidArgument] if they are not
// within it, with [Refused] if it is not writable.
func (r *Region) Admit(write bool, offset, length uint64) error {
	return admit(r.Capability, r.Length, r.Writable, write, offset, length)
}

// Admit is as that of [Region].
func (r *RemoteRegion) Admit(write bool, offset, length uint64) error {
	return admit(r.Capability, r.Length, r.Writable, write, offset, length)
}

func admit(c Capability, size uint64, writable, write bool, offset, length uint64) error {
	switch {
	case length > size || offset > size-length:
		return Errorf(InvalidArgument, "region %v: %d bytes at %d are not within its %d", c, length, offset, size)
	case write && !writable:
		return Errorf(Refused, "region %v may not be written to", c)
	}
	return nil
}
