package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// descriptionFromPB checks and converts. Limits come back with their defaults
// filled in.
func descriptionFromPB(r *pb.DescribeResponse) (sdk.Description, error) {
	d := sdk.Description{
		Name: r.GetName(), Version: r.GetVersion(), Contract: int(r.GetContract()),
		ConfigSchema: json.RawMessage(r.GetConfigSchema()),
		SharedDevice: r.GetSharedDevice(),
	}
	if err := checkName(d.Name); err != nil {
		return sdk.Description{}, err
	}
	if err := checkText("version", d.Version); err != nil {
		return sdk.Description{}, err
	}
	if n := len(d.ConfigSchema); n > bounds.SchemaBytes {
		return sdk.Description{}, fmt.Errorf("schema of %d bytes, the limit is %d", n, bounds.SchemaBytes)
	}
	if len(d.ConfigSchema) > 0 && !json.Valid(d.ConfigSchema) {
		return sdk.Description{}, errors.New("the schema is not JSON")
	}
	if n := len(r.GetFeatures()); n > bounds.Features {
		return sdk.Description{}, fmt.Errorf("%d features, the limit is %d", n, bounds.Features)
	}
	for _, f := range r.GetFeatures() {
		if f == 0 || f > 0xffff {
			return sdk.Description{}, fmt.Errorf("feature %d does not exist", f)
		}
		d.Features = append(d.Features, sdk.Feature(f)) // unknown ones are of no use here
	}
	var err error
	if d.Limits, err = limitsFromPB(r.GetLimits()); err != nil {
		return sdk.Description{}, err
	}
	if d.Listeners, err = listenersFromPB(r.GetListeners()); err != nil {
		return sdk.Description{}, err
	}
	if d.Has(sdk.FeatureMove) {
		if d.Move, err = moveFromPB(r.GetMove()); err != nil {
			return sdk.Description{}, err
		}
	}
	return d, nil
}

func checkName(name string) error {
	if len(name) < 1 || len(name) > 32 {
		return fmt.Errorf("name of %d bytes, 1 to 32 are allowed", len(name))
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("name %q: only a-z, 0-9 and - are allowed", name)
		}
	}
	return nil
}

func checkText(what, s string) error {
	if len(s) > bounds.TextBytes {
		return fmt.Errorf("%s of %d bytes, the limit is %d", what, len(s), bounds.TextBytes)
	}
	return nil
}

func limitsFromPB(l *pb.Limits) (sdk.Limits, error) {
	const maxInt = 1 << 30
	if l.GetMaxFrame() > sdk.MaxFrameLimit {
		return sdk.Limits{}, fmt.Errorf("frames of %d bytes, the limit is %d", l.GetMaxFrame(), sdk.MaxFrameLimit)
	}
	if l.GetInflightFrames() > maxInt || l.GetInflightBytes() > maxInt {
		return sdk.Limits{}, fmt.Errorf("%d frames and %d bytes in flight, the limit is %d", l.GetInflightFrames(), l.GetInflightBytes(), maxInt)
	}
	return sdk.Limits{
		MaxFrame:       int(l.GetMaxFrame()),
		InflightFrames: int(l.GetInflightFrames()),
		InflightBytes:  int(l.GetInflightBytes()),
	}.WithDefaults(), nil
}

func listenersFromPB(specs []*pb.ListenerSpec) ([]sdk.ListenerSpec, error) {
	if len(specs) > bounds.Listeners {
		return nil, fmt.Errorf("%d listeners, the limit is %d", len(specs), bounds.Listeners)
	}
	var out []sdk.ListenerSpec
	for _, s := range specs {
		l := sdk.ListenerSpec{Name: s.GetName(), Key: s.GetKey(), Default: s.GetDefault()}
		for _, text := range []string{l.Name, l.Key, l.Default} {
			if err := checkText("listener", text); err != nil {
				return nil, err
			}
		}
		if l.Name == "" || slices.ContainsFunc(out, func(o sdk.ListenerSpec) bool { return o.Name == l.Name }) {
			return nil, fmt.Errorf("listener %q has no name of its own", l.Name)
		}
		out = append(out, l)
	}
	return out, nil
}

func configToPB(cfg sdk.Config, listeners []string) *pb.ConfigureRequest {
	return &pb.ConfigureRequest{
		Instance: cfg.Instance, Incarnation: cfg.Incarnation[:],
		Settings: cfg.Settings, Listeners: listeners, Keys: keysToPB(cfg.Keys),
	}
}

func keysToPB(k *sdk.Keys) *pb.Keys {
	if k == nil {
		return nil
	}
	return &pb.Keys{Ca: k.CA, Cert: k.Cert, Key: k.Key, Allow: k.Allow}
}

func checkKeys(k *sdk.Keys) error {
	if k == nil {
		return nil
	}
	n := len(k.CA) + len(k.Cert) + len(k.Key)
	for _, a := range k.Allow {
		n += len(a)
	}
	return bounds.CheckKeys(n, len(k.Allow))
}

func setupFromPB(r *pb.ConfigureResponse) (sdk.Setup, error) {
	if err := bounds.CheckAttributes(r.GetAttributes()); err != nil {
		return sdk.Setup{}, err
	}
	if n := len(r.GetPaths()); n > bounds.LocalPaths {
		return sdk.Setup{}, fmt.Errorf("%d local paths, the limit is %d", n, bounds.LocalPaths)
	}
	s := sdk.Setup{Attributes: r.GetAttributes()}
	for _, p := range r.GetPaths() {
		if err := errors.Join(checkText("local path", p.GetName()), checkText("local path", p.GetDetail())); err != nil {
			return sdk.Setup{}, err
		}
		s.Paths = append(s.Paths, sdk.LocalPath{Name: p.GetName(), Detail: p.GetDetail()})
	}
	return s, nil
}

func targetToPB(t sdk.Target) *pb.Target {
	return &pb.Target{
		Local: t.Local[:], Peer: t.Peer[:], PeerName: bounds.Text(t.PeerName), PeerIdentity: t.PeerIdentity, Path: t.Path,
		Remote: t.Remote, Generation: t.Generation, Use: uint32(t.Use), Lane: uint32(t.Lane),
	}
}

func pathsFromPB(r *pb.PathsResponse) ([]string, error) {
	paths := r.GetPaths()
	if len(paths) > bounds.Paths {
		return nil, fmt.Errorf("%d paths, the limit is %d", len(paths), bounds.Paths)
	}
	for i, p := range paths {
		if p == "" || len(p) > bounds.PathBytes {
			return nil, fmt.Errorf("path name of %d bytes, 1 to %d are allowed", len(p), bounds.PathBytes)
		}
		if slices.Contains(paths[:i], p) {
			return nil, fmt.Errorf("path %q is listed twice", p)
		}
	}
	return paths, nil
}

func codeFromPB(n uint32) sdk.Code {
	if n <= uint32(sdk.OutcomeUnknown) && sdk.Code(n).Valid() {
		return sdk.Code(n)
	}
	return sdk.Refused
}

func errorToPB(err error) *pb.Error {
	code := sdk.CodeOf(err)
	if !code.Valid() {
		code = sdk.Refused
	}
	return &pb.Error{Code: uint32(code), Message: bounds.Text(err.Error())}
}
