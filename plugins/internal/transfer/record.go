package transfer

import (
	"encoding/binary"

	"github.com/hawser-transport/hawser/sdk"
)

// The active end sends requests: a header, and a write's bytes. The passive end
// answers each with a reply, in the order of the requests: a header, and a
// read's bytes if its code is 0. Little endian:
//
//	request: u8 kind (1 read, 2 write) | 3 zero bytes | u32 length | u64 id | 16 capability | u64 offset
//	reply:   u8 code (0 done) | 3 zero bytes | u32 length of what follows | u64 id
//
// Ids count the requests of a connection, from 1.
const (
	requestLen = 1 + 3 + 4 + 8 + 16 + 8
	replyLen   = 1 + 3 + 4 + 8
)

type request struct {
	kind   sdk.OpKind
	length uint32
	id     uint64
	region sdk.Capability
	offset uint64
}

func (r *request) append(b []byte) []byte {
	b = append(b, byte(r.kind), 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, r.length)
	b = binary.LittleEndian.AppendUint64(b, r.id)
	b = append(b, r.region[:]...)
	return binary.LittleEndian.AppendUint64(b, r.offset)
}

// parseRequest reads requestLen bytes: the request with that id, of at most
// maxOp bytes.
func parseRequest(b []byte, id uint64, maxOp int) (request, error) {
	r := request{
		kind: sdk.OpKind(b[0]), length: binary.LittleEndian.Uint32(b[4:]), id: binary.LittleEndian.Uint64(b[8:]),
		region: sdk.Capability(b[16:32]), offset: binary.LittleEndian.Uint64(b[32:]),
	}
	switch {
	case r.kind != sdk.Read && r.kind != sdk.Write || [3]byte(b[1:]) != [3]byte{}:
		return r, broken("a request that begins with %x", b[:4])
	case r.length == 0 || r.length > uint32(maxOp):
		return r, broken("a request of %d bytes, the limit is %d", r.length, maxOp)
	case r.id != id:
		return r, broken("request %d in the place of %d", r.id, id)
	}
	return r, nil
}

type reply struct {
	code   sdk.Code // 0: done
	length uint32
	id     uint64
}

func (r *reply) append(b []byte) []byte {
	b = append(b, byte(r.code), 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, r.length)
	return binary.LittleEndian.AppendUint64(b, r.id)
}

// parseReply reads replyLen bytes. Whether anybody asked is for the caller.
func parseReply(b []byte) (reply, error) {
	r := reply{code: sdk.Code(b[0]), length: binary.LittleEndian.Uint32(b[4:]), id: binary.LittleEndian.Uint64(b[8:])}
	if r.code != 0 && !r.code.Valid() || [3]byte(b[1:]) != [3]byte{} {
		return r, broken("a reply that begins with %x", b[:4])
	}
	return r, nil
}

func broken(format string, args ...any) error {
	return sdk.Errorf(sdk.Unavailable, "peer broke the protocol: "+format, args...)
}
