package rdmatransport

import (
	"encoding/json"
	"net/netip"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/rail"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	maxMessage = 64 << 10
	maxNumber  = 1<<24 - 1 // of queue pairs and of packets
	maxReads   = 128       // at a time, as the settings
)

// message is an offer or an answer: the one end of a queue pair, as the other
// has to know it. The first names are those of the system that this one comes
// from. Unknown fields are ignored, and absent ones say the zero value.
type message struct {
	LocalNICPath string     `json:"local_nic_path"`
	PeerNICPath  string     `json:"peer_nic_path"`
	QPNum        []uint32   `json:"qp_num"` // of an endpoint for memory: one
	LocalLID     uint16     `json:"local_lid"`
	LocalGID     netip.Addr `json:"local_gid"`
	ReplyMsg     string     `json:"reply_msg,omitempty"`
	NotifyQPNum  uint32     `json:"notify_qp_num"` // of one for frames
	NotifyProto  int        `json:"notify_proto"`  // the engines negotiate it

	From       string    `json:"from"`
	To         string    `json:"to"`
	Generation uint64    `json:"generation"`
	Instance   uint64    `json:"instance"`
	MTU        verbs.MTU `json:"mtu"`
	PSN        uint32    `json:"psn"`
	// SendLimit is how many frames the other side may send before the first
	// grant.
	SendLimit int `json:"send_limit"`
	// ReadLimit is how many reads at a time this side's device answers, on an
	// endpoint for memory.
	ReadLimit int `json:"read_limit,omitempty"`
}

// number is that of the queue pair.
func (m message) number() uint32 {
	if m.NotifyQPNum == 0 && len(m.QPNum) == 1 {
		return m.QPNum[0]
	}
	return m.NotifyQPNum
}

func (m message) marshal() []byte {
	b, err := json.Marshal(m)
	if err != nil { // no field can fail
		panic(err)
	}
	return b
}

// parse decodes a message from the target's peer and checks all of it: what is
// what it has to be, and what only has to be possible.
func parse(what string, raw []byte, t sdk.Target, path rail.Path) (message, error) {
	var m message
	if len(raw) > maxMessage {
		return m, sdk.Errorf(sdk.Refused, "%s of %d bytes is over %d", what, len(raw), maxMessage)
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, sdk.Errorf(sdk.Refused, "%s: %w", what, err)
	}
	refuse := func(format string, args ...any) (message, error) {
		return m, sdk.Errorf(sdk.Refused, what+" "+format, args...)
	}
	switch {
	case m.ReplyMsg != "":
		return refuse("says: %.200s", m.ReplyMsg)
	case m.Generation != t.Generation:
		return refuse("is of generation %d, not %d", m.Generation, t.Generation)
	case m.From != t.Peer.String():
		return refuse("is from incarnation %.32s, not %s", m.From, t.Peer)
	case m.To != t.Local.String():
		return refuse("is to incarnation %.32s, this is %s", m.To, t.Local)
	case !m.LocalGID.Is6() || m.LocalGID != path.Remote.GID:
		return refuse("is from port %.64s, which is not the path's %s", m.LocalGID, path.Remote.GID)
	case t.Use == sdk.UseFrames && m.NotifyQPNum == 0:
		return refuse("has no notify queue pair")
	case t.Use == sdk.UseMemory && (m.NotifyQPNum != 0 || len(m.QPNum) != 1 || m.QPNum[0] == 0):
		return refuse("has not one queue pair for data and none for notifications")
	case m.number() > maxNumber || m.PSN > maxNumber:
		return refuse("has numbers over 24 bits")
	case m.MTU != 0 && !m.MTU.Valid():
		return refuse("has MTU %d", m.MTU)
	case t.Use == sdk.UseFrames && (m.SendLimit < 1 || m.SendLimit > maxShare):
		return refuse("has send limit %d, not 1 to %d", m.SendLimit, maxShare)
	case t.Use == sdk.UseMemory && (m.ReadLimit < 1 || m.ReadLimit > maxReads):
		return refuse("has read limit %d, not 1 to %d", m.ReadLimit, maxReads)
	}
	return m, nil
}
