package engine

import (
	"context"
	"errors"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/sdk"
)

// answers is the engine's side of its peers' calls.
type answers struct {
	e *Engine
	// open is closed once the engine knows its own address.
	open chan struct{}
}

// Hello installs the sender's session, if none is held for its incarnation or
// if the held one is named as replaced; otherwise the held one stays.
func (h *answers) Hello(ctx context.Context, req control.HelloRequest) (control.HelloReply, error) {
	<-h.open
	e := h.e
	if req.From.Incarnation == e.incarnation {
		// To oneself: nothing travels, so any session will do.
		return control.HelloReply{Node: e.self(), Proto: req.Proto, Session: req.Session, Room: selfRoom}, nil
	}
	reply, result, err := e.greeting(req, control.Caller(ctx))
	e.stats.helloReceived[result].Add(1)
	return reply, err
}

// greeting answers a hello of somebody else, who has this identity, and tells
// what became of the session that it proposes.
func (e *Engine) greeting(req control.HelloRequest, identity string) (reply control.HelloReply, result int, err error) {
	a, err := e.greet(req.From, identity)
	if err != nil {
		return reply, sessionRefused, err
	}
	proto := min(req.Proto, *e.cfg.Notification.Proto)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dead != nil || a.successor != nil {
		return reply, sessionRefused, sdk.Errorf(sdk.Busy, "hello: this peer is being forgotten: say it again")
	}
	if !a.agreeLocked(proto) {
		return reply, sessionRefused, sdk.Errorf(sdk.InvalidArgument, "hello: protocol %d is in use with this incarnation, not %d", a.proto.Load(), proto)
	}
	old := a.in
	result = sessionKept
	if old == nil || req.Replaces != 0 && req.Replaces == old.ID() {
		if old == nil && int(e.stats.Sessions.Load()) >= e.cfg.Sessions.Max {
			return reply, sessionRefused, sdk.Errorf(sdk.Busy, "hello: this engine holds sessions.max = %d sessions", e.cfg.Sessions.Max)
		}
		result = sessionOpened
		if old != nil {
			result = sessionReplaced
		}
		e.endSession(old, endReplaced)
		a.openSessionLocked(req.Session, time.Now())
	}
	reply = control.HelloReply{Node: e.self(), Proto: proto, Session: a.in.ID()}
	if a.acks() {
		reply.Room.Seq, reply.Room.Bytes = e.queue.Room(a.in)
	}
	reply.Transports, reply.Version = a.publishedLocked()
	a.learnLocked(req.Transports, req.Version)
	a.pumpLocked()
	return reply, result, nil
}

// selfRoom is no limit: the queue itself says when it is full.
var selfRoom = control.Room{Seq: 1 << 62, Bytes: 1 << 62}

// Bootstrap has the transport accept the peer's offer.
func (h *answers) Bootstrap(ctx context.Context, req control.BootstrapRequest) (control.BootstrapReply, error) {
	a, err := h.sender(ctx, "bootstrap", req.From)
	if err != nil {
		return control.BootstrapReply{}, err
	}
	if req.To != h.e.incarnation {
		return control.BootstrapReply{}, sdk.Errorf(sdk.PeerRestarted, "bootstrap: incarnation %s is not here, %s is", req.To.Short(), h.e.incarnation.Short())
	}
	if req.Use == sdk.UseMemory {
		return a.acceptMemory(ctx, req)
	}
	return a.accept(ctx, req)
}

// Probe says who is here.
func (h *answers) Probe(context.Context, control.ProbeRequest) (control.ProbeReply, error) {
	<-h.open
	return control.ProbeReply{Node: h.e.self()}, nil
}

// Changed takes in what the peer runs now.
func (h *answers) Changed(ctx context.Context, req control.ChangeRequest) error {
	a, err := h.sender(ctx, "news of transports", req.From)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.learnLocked(req.Transports, req.Version)
	a.pumpLocked()
	return nil
}

// Goodbye ends the association: the peer's life is over.
func (h *answers) Goodbye(ctx context.Context, req control.GoodbyeRequest) error {
	if req.Mapped {
		h.e.memory.haunted(req.From, control.Caller(ctx))
	}
	a, err := h.sender(ctx, "goodbye", req.From)
	if errors.Is(err, sdk.SessionUnknown) {
		return nil // nothing is held: nothing to end
	}
	if err != nil {
		return err
	}
	if h, body, err := frame.Decode(req.LastAck); err == nil && h.Type == frame.CtrlAck {
		a.mu.Lock()
		a.answeredLocked(inAck{h, body}, time.Now())
		a.mu.Unlock()
	}
	a.die(sdk.Errorf(sdk.Unavailable, "the peer at %s said goodbye", a.address))
	return nil
}

// sender finds the association of a peer that has said hello. Only the bearer
// of the certificate under which it did speaks for it.
func (h *answers) sender(ctx context.Context, call string, i Incarnation) (*association, error) {
	d := &h.e.directory
	d.mu.Lock()
	a := d.byIncarnation[i]
	d.mu.Unlock()
	if a == nil {
		return nil, sdk.Errorf(sdk.SessionUnknown, "incarnation %s is not known here: say hello", i.Short())
	}
	if by := control.Caller(ctx); by != a.identity {
		return nil, h.e.impostor(notTheirs(call, i, a.identity, by))
	}
	return a, nil
}
