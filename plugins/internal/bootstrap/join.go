package bootstrap

import (
	"encoding/binary"
	"fmt"

	"github.com/hawser-transport/hawser/sdk"
)

// Kind says what a connection is for.
type Kind uint8

const (
	// Frames: the connection carries frames for one endpoint.
	Frames Kind = 1
	// Probe: the connection asks whether anybody answers.
	Probe Kind = 2
	// Memory: the connection carries transfers for one endpoint.
	Memory Kind = 3
)

// kindFor is the kind of an endpoint's connection.
func kindFor(u sdk.Use) Kind {
	if u == sdk.UseMemory {
		return Memory
	}
	return Frames
}

// JoinLen is the length of a join message on the wire.
const JoinLen = 56

// joinMagic begins every join message and every verdict.
var joinMagic = [4]byte{'H', 'W', 'S', 'R'}

// Join is the first thing that the dialing side says on a connection.
type Join struct {
	Kind       Kind
	Instance   uint64
	Generation uint64
	// Answered is the token of the side that is dialed, Offered the dialing
	// side's own.
	Answered, Offered Token
}

// Marshal encodes the message.
func (j Join) Marshal() []byte {
	b := make([]byte, 0, JoinLen)
	b = append(b, joinMagic[:]...)
	b = append(b, Version, byte(j.Kind), 0, 0)
	b = binary.LittleEndian.AppendUint64(b, j.Instance)
	b = binary.LittleEndian.AppendUint64(b, j.Generation)
	b = append(b, j.Answered[:]...)
	return append(b, j.Offered[:]...)
}

// ParseJoin decodes a join message of exactly JoinLen bytes. The verdict is
// Welcome if it is well formed.
func ParseJoin(b []byte) (Join, Verdict) {
	var j Join
	if len(b) != JoinLen || [4]byte(b) != joinMagic {
		return j, NotHawser
	}
	if b[4] != Version {
		return j, WrongVersion
	}
	j.Kind = Kind(b[5])
	if j.Kind < Frames || j.Kind > Memory || b[6] != 0 || b[7] != 0 {
		return j, WrongKind
	}
	j.Instance = binary.LittleEndian.Uint64(b[8:])
	j.Generation = binary.LittleEndian.Uint64(b[16:])
	copy(j.Answered[:], b[24:])
	copy(j.Offered[:], b[40:])
	return j, Welcome
}

// Verdict is the accepting side's one reply to a join message. Numbers are
// frozen.
type Verdict uint8

const (
	// Welcome: the connection is the endpoint's.
	Welcome Verdict = 0
	// NotHawser: not a join message. A bare socket is closed without a word.
	NotHawser Verdict = 1
	// WrongVersion: a version that this build does not speak.
	WrongVersion Verdict = 2
	// WrongKind: a kind of connection that this build does not serve, or that
	// is not the token's endpoint's: frames and transfers are never mixed.
	WrongKind Verdict = 3
	// WrongInstance: meant for another instance that shares the listener.
	WrongInstance Verdict = 4
	// UnknownToken: nobody expects it: late, used up, or never issued.
	UnknownToken Verdict = 5
	// WrongGeneration: the token's endpoint is of another generation.
	WrongGeneration Verdict = 6
	// Closing: the instance is going away.
	Closing Verdict = 7
	// WrongIdentity: the token's endpoint is for the bearer of another
	// certificate.
	WrongIdentity Verdict = 8

	verdicts Verdict = 9
)

// VerdictLen is the length of a verdict on the wire.
const VerdictLen = 8

// Marshal encodes the verdict.
func (v Verdict) Marshal() []byte {
	return []byte{joinMagic[0], joinMagic[1], joinMagic[2], joinMagic[3], Version, byte(v), 0, 0}
}

// ParseVerdict decodes a verdict of exactly VerdictLen bytes.
func ParseVerdict(b []byte) (Verdict, error) {
	if len(b) != VerdictLen || [4]byte(b) != joinMagic || b[4] != Version || Verdict(b[5]) >= verdicts {
		return 0, sdk.Errorf(sdk.Refused, "what answers there does not speak this transport's protocol")
	}
	return Verdict(b[5]), nil
}

// Err returns nil for Welcome, and otherwise why the peer refused.
func (v Verdict) Err() error {
	if v == Welcome {
		return nil
	}
	return sdk.Errorf(sdk.Refused, "peer refused the connection: %s", v)
}

// String says what the verdict means.
func (v Verdict) String() string {
	switch v {
	case Welcome:
		return "welcome"
	case NotHawser:
		return "not a join message"
	case WrongVersion:
		return "version not spoken"
	case WrongKind:
		return "kind of connection not served, or not expected"
	case WrongInstance:
		return "meant for another instance"
	case UnknownToken:
		return "token not expected"
	case WrongGeneration:
		return "wrong generation"
	case Closing:
		return "going away"
	case WrongIdentity:
		return "the certificate is not that of the engine which this endpoint is for"
	default:
		return fmt.Sprintf("verdict %d", uint8(v))
	}
}
