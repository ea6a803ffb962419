package sdktest

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Harness tells the suite how to make the transport under test.
type Harness struct {
	// New makes a fresh transport, not yet configured. It is called twice or
	// more for each case, and may use t to fail and to clean up. Required.
	New func(t testing.TB) sdk.Transport

	// Settings is the user's config object for every instance. Default "{}".
	Settings json.RawMessage

	// BadSettings are config objects with which Configure must fail with
	// InvalidArgument, although they may be valid under the schema.
	BadSettings []json.RawMessage

	// Secure gives every instance keys, if the transport lists
	// [sdk.FeatureKeys]: the whole suite then runs under TLS. The cases about
	// keys run either way.
	Secure bool

	// Arrive is the transport's documented time that an accepted endpoint
	// waits for its peer. With 0 that case is skipped.
	Arrive time.Duration

	// Lose takes a path from an instance, as a port that loses its link does,
	// or gives it back. Without it the case about [sdk.Config.PathsChanged] is
	// skipped.
	Lose func(t testing.TB, tr sdk.Transport, path string, lost bool)

	// Memory makes memory of an application's for the cases about [sdk.Mover],
	// or returns nil if it cannot make that kind: then the cases that need it
	// are skipped. Host memory is made without it, by [HostMemory].
	Memory func(t testing.TB, kind sdk.MemoryKind, size int) Memory

	// OnlyWritable says that this machine may be one where the transport
	// reaches no read-only memory: where it refuses such a region with code
	// [sdk.Unsupported], the cases that need it are skipped.
	OnlyWritable bool

	// External says that the transport runs in another process, so that its
	// goroutines and files cannot be counted here.
	External bool

	// Inbox says that the transport calls frames done that it has and has not
	// handed over: a device acknowledges what has landed. They are lost when
	// the endpoint ends, which protocols 0 and 1 do not mend.
	Inbox bool

	// Timeout bounds every single wait. Default 20 s. It is generous since
	// only a broken transport ever uses it up.
	Timeout time.Duration

	// bubble runs each case in fake time, and only, unless empty, those whose
	// name begins so.
	bubble bool
	only   string
}

// Run runs every case of the conformance suite as a subtest. Each one gets two
// fresh instances, A and B, on loopback listeners that the suite opens as the
// engine would, and an exchange between them inside the test. Cases for
// abilities that Describe does not list are skipped, and say so. Do not run it
// in parallel with other tests: it counts goroutines.
//
//	func TestConformance(t *testing.T) {
//		sdktest.Run(t, sdktest.Harness{
//			New: func(testing.TB) sdk.Transport { return mytransport.New() },
//		})
//	}
func Run(t *testing.T, h Harness) {
	t.Helper()
	d := describe(t, h)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			switch why := c.reason(h, d); {
			case why != "":
				t.Skip(why)
			case h.bubble:
				synctest.Test(t, func(t *testing.T) { c.execute(t, h) })
			default:
				c.execute(t, h)
			}
		})
	}
}

// describe asks an instance of its own, which does nothing else.
func describe(t testing.TB, h Harness) sdk.Description {
	t.Helper()
	tr := h.New(t)
	if tr == nil {
		t.Fatal("Harness.New returned nil")
	}
	d := tr.Describe()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := tr.Close(ctx); err != nil {
		t.Fatalf("Close before Configure: %v", err)
	}
	return d
}

// testCase is one line of the suite.
type testCase struct {
	name string
	// needs is a feature without which the case is skipped, or 0.
	needs sdk.Feature
	// skip returns another reason to skip, or "".
	skip func(h Harness, d sdk.Description) string
	// bare cases get no configured instances.
	bare bool
	run  func(r *rig)
}

// reason says why the case cannot run, or "".
func (c testCase) reason(h Harness, d sdk.Description) string {
	if !strings.HasPrefix(c.name, h.only) {
		return "not wanted"
	}
	if c.needs != 0 && !d.Has(c.needs) {
		return "not described: " + c.needs.String()
	}
	if c.skip != nil {
		return c.skip(h, d)
	}
	return ""
}

// execute runs the case to its end.
func (c testCase) execute(t testing.TB, h Harness) {
	t.Helper()
	if h.Settings == nil {
		h.Settings = json.RawMessage("{}")
	}
	if h.Timeout == 0 {
		h.Timeout = 20 * time.Second
	}
	before := snapshot()
	r := &rig{TB: t, h: h}
	defer r.finish(before)
	first := r.make("a")
	r.desc = first.tr.Describe()
	r.limits, r.move = r.desc.Limits.WithDefaults(), r.desc.Move.WithDefaults()
	if !c.bare {
		r.a, r.b = first, r.make("b")
		r.configure(r.a)
		r.configure(r.b)
	}
	c.run(r)
}

// cases is the suite. A name says the duty.
var cases = []testCase{
	{name: "describe-is-constant", bare: true, run: describeIsConstant},
	{name: "describe-is-valid", bare: true, run: describeIsValid},
	{name: "describe-schema", bare: true, skip: noSchema, run: describeSchema},
	{name: "configure-setup-is-valid", run: setupIsValid},
	{name: "configure-refuses-bad-settings", bare: true, skip: noBadSettings, run: configureBadSettings},
	{name: "configure-occupied-address", bare: true, skip: noListeners, run: configureOccupied},
	{name: "configure-obeys-context", bare: true, run: configureCancelled},
	{name: "configure-opens-missing-listeners", bare: true, skip: noListeners, run: configureOwnListeners},
	{name: "close-without-configure", bare: true, run: closeUnconfigured},
	{name: "close-is-idempotent", run: closeIdempotent},

	{name: "paths-are-stable", needs: sdk.FeatureNotify, run: pathsStable},
	{name: "paths-change", needs: sdk.FeatureNotify, skip: noLose, run: pathsChange},
	{name: "paths-of-useless-attributes", needs: sdk.FeatureNotify, run: pathsUseless},

	{name: "connect-both-directions", needs: sdk.FeatureNotify, run: connectBothDirections},
	{name: "connect-every-path", needs: sdk.FeatureNotify, run: connectEveryPath},
	{name: "connect-unknown-path", needs: sdk.FeatureNotify, run: connectUnknownPath},
	{name: "connect-exchange-error", needs: sdk.FeatureNotify, run: connectExchangeError},
	{name: "connect-exchange-error-after-accept", needs: sdk.FeatureNotify, run: connectExchangeLost},
	{name: "connect-cancelled", needs: sdk.FeatureNotify, run: connectCancelled},
	{name: "connect-cancelled-before", needs: sdk.FeatureNotify, run: connectCancelledBefore},
	{name: "connect-peer-gone", needs: sdk.FeatureNotify, run: connectPeerGone},
	{name: "connect-does-not-block-others", needs: sdk.FeatureNotify, run: connectBlocksNobody},
	{name: "connect-two-at-once", needs: sdk.FeatureNotify, run: connectTwoAtOnce},
	{name: "connect-many", needs: sdk.FeatureNotify, run: connectMany},
	{name: "connect-survives-its-context", needs: sdk.FeatureNotify, run: connectContextEnds},

	{name: "accept-holds-frames", needs: sdk.FeatureNotify, run: acceptHoldsFrames},
	{name: "accept-peer-never-arrives", needs: sdk.FeatureNotify, skip: noArrive, run: acceptNobodyArrives},
	{name: "accept-refuses-garbage", needs: sdk.FeatureNotify, run: acceptGarbage},
	{name: "accept-refuses-older-generation", needs: sdk.FeatureNotify, run: acceptOlder},
	{name: "accept-wrong-generation", needs: sdk.FeatureNotify, run: acceptWrongGeneration},
	{name: "connect-garbage-answer", needs: sdk.FeatureNotify, run: connectGarbageAnswer},

	{name: "send-sizes", needs: sdk.FeatureNotify, run: sendSizes},
	{name: "send-too-large", needs: sdk.FeatureNotify, run: sendTooLarge},
	{name: "send-arbitrary-bytes", needs: sdk.FeatureNotify, run: sendArbitraryBytes},
	{name: "send-keeps-order", needs: sdk.FeatureNotify, run: sendOrder},
	{name: "send-copies", needs: sdk.FeatureNotify, run: sendCopies},
	{name: "send-more-is-not-for-ever", needs: sdk.FeatureNotify, run: sendMore},
	{name: "send-nothing", needs: sdk.FeatureNotify, run: sendNothing},
	{name: "send-after-close", needs: sdk.FeatureNotify, run: sendAfterClose},
	{name: "send-does-not-block", needs: sdk.FeatureNotify, run: sendDoesNotBlock},
	{name: "load-both-directions", needs: sdk.FeatureNotify, run: loadBothDirections},

	{name: "complete-exactly-once", needs: sdk.FeatureNotify, run: completeOnce},
	{name: "done-needs-the-peer", needs: sdk.FeatureNotify, run: doneNeedsPeer},
	{name: "done-is-delivered", needs: sdk.FeatureNotify, run: doneIsDelivered},

	{name: "handler-one-call-at-a-time", needs: sdk.FeatureNotify, run: handlerSerial},
	{name: "handler-may-call-back", needs: sdk.FeatureNotify, run: handlerCallsBack},
	{name: "handler-slow-loses-nothing", needs: sdk.FeatureNotify, run: handlerSlow},

	{name: "hold-delays-no-other", needs: sdk.FeatureNotify, run: holdDelaysNoOther},
	{name: "hold-loses-nothing", needs: sdk.FeatureNotify, run: holdLosesNothing},
	{name: "hold-and-end", needs: sdk.FeatureNotify, run: holdAndEnd},

	{name: "end-once-and-last", needs: sdk.FeatureNotify, run: endOnceAndLast},
	{name: "end-close-is-idempotent", needs: sdk.FeatureNotify, run: endCloseIdempotent},
	{name: "end-peer-closes", needs: sdk.FeatureNotify, run: endPeerCloses},
	{name: "end-transport-closes", needs: sdk.FeatureNotify, run: endTransportCloses},
	{name: "end-transport-closes-under-load", needs: sdk.FeatureNotify, run: endTransportClosesLoaded},
	{name: "end-connect-under-way", needs: sdk.FeatureNotify, run: endConnectUnderWay},
	{name: "successor-takes-over", needs: sdk.FeatureNotify, run: successorTakesOver},

	{name: "move-register", needs: sdk.FeatureMove, run: moveRegister},
	{name: "move-register-twice", needs: sdk.FeatureMove, run: moveRegisterTwice},
	{name: "move-register-unknown-kind", needs: sdk.FeatureMove, skip: allKinds, run: moveRegisterKind},
	{name: "move-bytes", needs: sdk.FeatureMove, run: moveBytes},
	{name: "move-sizes", needs: sdk.FeatureMove, run: moveSizes},
	{name: "move-kinds", needs: sdk.FeatureMove, run: moveKinds},
	{name: "move-out-of-range", needs: sdk.FeatureMove, run: moveOutOfRange},
	{name: "move-malformed", needs: sdk.FeatureMove, run: moveMalformed},
	{name: "move-unknown-region", needs: sdk.FeatureMove, run: moveUnknownRegion},
	{name: "move-other-provider", needs: sdk.FeatureMove, run: moveOtherProvider},
	{name: "move-read-only", needs: sdk.FeatureMove, run: moveReadOnly},
	{name: "move-provider-checks", needs: sdk.FeatureMove, skip: noTargetWrites, run: moveProviderChecks},
	{name: "move-by-base", needs: sdk.FeatureMove, run: moveByBase},
	{name: "move-announce-replaces", needs: sdk.FeatureMove, run: moveAnnounceReplaces},
	{name: "move-withdraw", needs: sdk.FeatureMove, run: moveWithdraw},
	{name: "move-deregister-here", needs: sdk.FeatureMove, run: moveDeregisterHere},
	{name: "move-deregister-there", needs: sdk.FeatureMove, skip: noTargetWrites, run: moveDeregisterThere},
	{name: "move-deregister-under-load", needs: sdk.FeatureMove, run: moveDeregisterLoaded},
	{name: "move-deregister-there-under-load", needs: sdk.FeatureMove, skip: noTargetWrites, run: moveDeregisterThereLoaded},
	{name: "move-complete-exactly-once", needs: sdk.FeatureMove, run: moveManyInFlight},
	{name: "move-two-endpoints", needs: sdk.FeatureMove, run: moveTwoEndpoints},
	{name: "move-both-directions", needs: sdk.FeatureMove, run: moveBothDirections},
	{name: "move-passive-end-sends-nothing", needs: sdk.FeatureMove, run: movePassiveSends},
	{name: "move-generations-are-of-a-lane", needs: sdk.FeatureMove, run: moveGenerations},
	{name: "move-flush", needs: sdk.FeatureMove, skip: noFlush, run: moveFlush},
	{name: "move-end-stops-reads", needs: sdk.FeatureMove, run: moveEndStopsReads},
	{name: "move-end-stops-writes-there", needs: sdk.FeatureMove, skip: noTargetWrites, run: moveEndStopsWrites},
	{name: "move-peer-closes", needs: sdk.FeatureMove, run: movePeerCloses},
	{name: "move-transport-closes-under-load", needs: sdk.FeatureMove, run: moveTransportCloses},

	{name: "probe-up", needs: sdk.FeatureProbe, run: probeUp},
	{name: "probe-down", needs: sdk.FeatureProbe, run: probeDown},
	{name: "probe-obeys-context", needs: sdk.FeatureProbe, run: probeCancelled},
	{name: "keys-carry", needs: sdk.FeatureKeys, skip: noNotify, bare: true, run: keysCarry},
	{name: "keys-refuse", needs: sdk.FeatureKeys, skip: noNotify, bare: true, run: keysRefuse},
	{name: "keys-bad", needs: sdk.FeatureKeys, bare: true, run: keysBad},
	{name: "keys-change", needs: sdk.FeatureKeys, skip: noNotify, bare: true, run: keysChange},
	{name: "keys-not-turned-on", needs: sdk.FeatureKeys, bare: true, run: keysNotTurnedOn},
	{name: "drain-refuses-new-work", needs: sdk.FeatureDrain, run: drainRefuses},
	{name: "drain-spares-the-listener", needs: sdk.FeatureDrain, skip: notShared, run: drainSparesListener},
}

func allKinds(_ Harness, d sdk.Description) string {
	if _, ok := kindNotIn(d.Move); !ok {
		return "it moves all kinds of memory"
	}
	return ""
}

func noTargetWrites(_ Harness, d sdk.Description) string {
	if !d.Move.TargetWrites {
		return "not described: that the target carries out writes"
	}
	return ""
}

func noFlush(_ Harness, d sdk.Description) string {
	if !d.Move.NeedsFlush {
		return "not described: that writes need a flush"
	}
	return ""
}

func noSchema(_ Harness, d sdk.Description) string {
	if len(d.ConfigSchema) == 0 {
		return "not described: a config schema"
	}
	return ""
}

func noBadSettings(h Harness, _ sdk.Description) string {
	if len(h.BadSettings) == 0 {
		return "the harness names no bad settings"
	}
	return ""
}

func noListeners(_ Harness, d sdk.Description) string {
	if len(d.Listeners) == 0 {
		return "not described: listeners"
	}
	return ""
}

func noNotify(_ Harness, d sdk.Description) string {
	if !d.Has(sdk.FeatureNotify) {
		return "not described: " + sdk.FeatureNotify.String()
	}
	return ""
}

func noArrive(h Harness, _ sdk.Description) string {
	if h.Arrive == 0 {
		return "the harness does not say how long the transport waits for a peer"
	}
	return ""
}

func noLose(h Harness, _ sdk.Description) string {
	if h.Lose == nil {
		return "the harness cannot take a path away"
	}
	return ""
}

func notShared(_ Harness, d sdk.Description) string {
	switch {
	case !d.SharedDevice:
		return "not described: a shared device"
	case !d.Has(sdk.FeatureNotify):
		return "not described: " + sdk.FeatureNotify.String()
	}
	return ""
}
