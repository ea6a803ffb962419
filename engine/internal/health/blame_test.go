package health

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

func TestBlame(t *testing.T) {
	all := Facts{PeerAnswers: true, HasRoom: true, OtherAcked: true}
	for _, c := range []struct {
		name  string
		kind  Kind
		facts Facts
		want  bool
	}{
		{"an endpoint's end", EndpointEnded, Facts{}, true},
		{"a refusal", Refused, Facts{}, true},
		{"a failed connect", ConnectFailed, Facts{}, true},
		{"frames not taken", NotPosted, Facts{}, true},
		{"an ack timeout, and all else works", AckTimeout, all, true},
		{"an ack timeout, and the peer does not answer", AckTimeout, Facts{HasRoom: true, OtherAcked: true}, false},
		{"an ack timeout, and there is no room", AckTimeout, Facts{PeerAnswers: true, OtherAcked: true}, false},
		{"an ack timeout, and nothing was acked elsewhere", AckTimeout, Facts{PeerAnswers: true, HasRoom: true}, false},
		{"an ack timeout, and nothing is known", AckTimeout, Facts{}, false},
		{"what an end flushes", Flushed, all, false},
		{"a plugin's exit", PluginExited, all, false},
		{"a silent control plane", ControlSilent, all, false},
		{"room 0", NoRoom, all, false},
		{"a remote-access error", RemoteAccess, all, false},
		{"our own doing", OwnDoing, all, false},
		{"nothing", 0, all, false},
		{"an unknown kind", 200, all, false},
	} {
		if got := Blame(c.kind, c.facts); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestKinds(t *testing.T) {
	for _, c := range []struct {
		err                                error
		end, send, connect, connectSilence Kind
	}{
		{nil, EndpointEnded, NotPosted, ConnectFailed, ControlSilent},
		{errors.New("no code"), EndpointEnded, NotPosted, ConnectFailed, ControlSilent},
		{sdk.Unavailable, EndpointEnded, NotPosted, ConnectFailed, ControlSilent},
		{fmt.Errorf("wrapped: %w", sdk.PluginExited), PluginExited, PluginExited, PluginExited, ControlSilent},
		{sdk.Refused, EndpointEnded, NotPosted, Refused, ControlSilent},
		{sdk.TooLarge, EndpointEnded, OwnDoing, ConnectFailed, ControlSilent},
		{sdk.InvalidArgument, EndpointEnded, OwnDoing, ConnectFailed, ControlSilent},
		{sdk.Backpressure, NoRoom, NoRoom, NoRoom, ControlSilent},
		{sdk.Busy, EndpointEnded, NotPosted, OwnDoing, ControlSilent},
		{sdk.SessionUnknown, EndpointEnded, NotPosted, OwnDoing, ControlSilent},
		{sdk.StaleCapability, RemoteAccess, RemoteAccess, RemoteAccess, ControlSilent},
		{sdk.Errorf(sdk.PeerRestarted, "another one"), OwnDoing, OwnDoing, OwnDoing, ControlSilent},
		{sdk.Closed, OwnDoing, OwnDoing, OwnDoing, ControlSilent},
	} {
		got := [4]Kind{EndKind(c.err), SendKind(c.err), ConnectKind(c.err, false), ConnectKind(c.err, true)}
		if want := [4]Kind{c.end, c.send, c.connect, c.connectSilence}; got != want {
			t.Errorf("%v: %v, want %v", c.err, got, want)
		}
	}
}
