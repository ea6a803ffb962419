package sdk

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

func descriptionToPB(d Description) *pb.DescribeResponse {
	limits := d.Limits.WithDefaults()
	out := &pb.DescribeResponse{
		Name: d.Name, Version: d.Version, Contract: uint32(d.Contract),
		Limits: &pb.Limits{
			MaxFrame:       uint32(limits.MaxFrame),
			InflightFrames: uint32(limits.InflightFrames),
			InflightBytes:  uint32(limits.InflightBytes),
		},
		ConfigSchema: d.ConfigSchema,
		SharedDevice: d.SharedDevice,
	}
	for _, f := range d.Features {
		out.Features = append(out.Features, uint32(f))
	}
	if d.Has(FeatureMove) {
		out.Move = moveToPB(d.Move)
	}
	for _, l := range d.Listeners {
		out.Listeners = append(out.Listeners, &pb.ListenerSpec{Name: l.Name, Key: l.Key, Default: l.Default})
	}
	return out
}

func configFromPB(req *pb.ConfigureRequest) (Config, error) {
	cfg := Config{Instance: req.GetInstance(), Settings: json.RawMessage(req.GetSettings())}
	if len(cfg.Settings) == 0 {
		cfg.Settings = json.RawMessage("{}")
	}
	if len(req.GetListeners()) > bounds.Listeners {
		return Config{}, Errorf(InvalidArgument, "%d listeners, the limit is %d", len(req.GetListeners()), bounds.Listeners)
	}
	var err error
	if cfg.Incarnation, err = incarnationFromPB("incarnation", req.GetIncarnation()); err != nil {
		return Config{}, err
	}
	cfg.Keys, err = keysFromPB(req.GetKeys())
	return cfg, err
}

func keysFromPB(k *pb.Keys) (*Keys, error) {
	if k == nil {
		return nil, nil
	}
	n := len(k.GetCa()) + len(k.GetCert()) + len(k.GetKey())
	for _, a := range k.GetAllow() {
		n += len(a)
	}
	if err := bounds.CheckKeys(n, len(k.GetAllow())); err != nil {
		return nil, coded(TooLarge, err, "keys")
	}
	return &Keys{CA: k.GetCa(), Cert: k.GetCert(), Key: k.GetKey(), Allow: k.GetAllow()}, nil
}

func setupToPB(s Setup) *pb.ConfigureResponse {
	out := &pb.ConfigureResponse{Attributes: s.Attributes}
	for _, p := range s.Paths {
		out.Paths = append(out.Paths, &pb.LocalPath{Name: p.Name, Detail: p.Detail})
	}
	return out
}

func targetFromPB(t *pb.Target) (Target, error) {
	if err := bounds.CheckAttributes(t.GetRemote()); err != nil {
		return Target{}, coded(InvalidArgument, err, "target")
	}
	out := Target{
		PeerName: t.GetPeerName(), PeerIdentity: t.GetPeerIdentity(), Path: t.GetPath(),
		Remote: t.GetRemote(), Generation: t.GetGeneration(), Lane: int(t.GetLane()),
	}
	var err error
	if out.Use, err = useFromPB(t.GetUse()); err != nil {
		return Target{}, err
	}
	if out.Local, err = incarnationFromPB("target's local", t.GetLocal()); err != nil {
		return Target{}, err
	}
	out.Peer, err = incarnationFromPB("target's peer", t.GetPeer())
	return out, err
}

func incarnationFromPB(what string, b []byte) (Incarnation, error) {
	var i Incarnation
	if len(b) != len(i) {
		return i, Errorf(InvalidArgument, "%s: an incarnation has %d bytes, not %d", what, len(i), len(b))
	}
	copy(i[:], b)
	return i, nil
}

// errorToPB keeps the code and the text. An error without a code is a no for
// reasons of the transport's own: silence is the one thing that it must not
// look like.
func errorToPB(err error) *pb.Error {
	if err == nil {
		return nil
	}
	return &pb.Error{Code: uint32(codeFor(err)), Message: bounds.Text(err.Error())}
}

func codeFor(err error) Code {
	if c := CodeOf(err); c.Valid() {
		return c
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return DeadlineExceeded
	}
	return Refused
}

func errorFromPB(e *pb.Error) error {
	if e == nil {
		return nil
	}
	c := Refused
	if e.GetCode() <= uint32(OutcomeUnknown) && Code(e.GetCode()).Valid() {
		c = Code(e.GetCode())
	}
	return &Error{Code: c, Message: bounds.Text(e.GetMessage())}
}

// coded gives a plain error a code and says where it was found.
func coded(c Code, err error, where string) error {
	if err == nil {
		return nil
	}
	return Errorf(c, "%s: %w", where, err)
}
