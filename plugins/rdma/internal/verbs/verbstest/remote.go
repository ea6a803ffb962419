package verbstest

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// call is one call of an [End] in another process.
type call struct {
	Method string
	Args   []json.RawMessage
}

// outcome is what it returned. Errors keep their number.
type outcome struct {
	Value json.RawMessage
	Errno syscall.Errno
	Error string
}

// Serve answers for an end until the connection ends, and stops it then.
func Serve(conn io.ReadWriter, e End) error {
	defer e.Stop()
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	for {
		var c call
		if err := in.Decode(&c); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := out.Encode(answer(e, c)); err != nil {
			return err
		}
	}
}

func answer(e End, c call) outcome {
	m := reflect.ValueOf(e).MethodByName(c.Method)
	if !m.IsValid() || m.Type().NumIn() != len(c.Args) {
		return outcome{Error: "no method " + c.Method + " of this form"}
	}
	args := make([]reflect.Value, len(c.Args))
	for i, raw := range c.Args {
		v := reflect.New(m.Type().In(i))
		if err := json.Unmarshal(raw, v.Interface()); err != nil {
			return outcome{Error: err.Error()}
		}
		args[i] = v.Elem()
	}
	invoke := m.Call
	if m.Type().IsVariadic() {
		invoke = m.CallSlice
	}
	results := invoke(args)
	var o outcome
	if err, _ := results[len(results)-1].Interface().(error); err != nil {
		o.Error = err.Error()
		errors.As(err, &o.Errno)
	}
	if len(results) == 2 {
		o.Value, _ = json.Marshal(results[0].Interface())
	}
	return o
}

// remote is an end behind a connection.
type remote struct {
	in  *json.Decoder
	out *json.Encoder
}

// Dial returns the end that [Serve] answers for at the other side.
func Dial(conn io.ReadWriter) End { return &remote{json.NewDecoder(conn), json.NewEncoder(conn)} }

// remoteError is an error of the other process.
type remoteError struct {
	text  string
	errno syscall.Errno
}

func (e *remoteError) Error() string { return e.text }

func (e *remoteError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

func (r *remote) do(value any, method string, args ...any) error {
	c := call{Method: method, Args: []json.RawMessage{}}
	for _, a := range args {
		raw, err := json.Marshal(a)
		if err != nil {
			return err
		}
		c.Args = append(c.Args, raw)
	}
	if err := r.out.Encode(c); err != nil {
		return err
	}
	var o outcome
	if err := r.in.Decode(&o); err != nil {
		return err
	}
	if value != nil && o.Value != nil {
		if err := json.Unmarshal(o.Value, value); err != nil {
			return err
		}
	}
	if o.Error != "" {
		return &remoteError{o.Error, o.Errno}
	}
	return nil
}

func get[T any](r *remote, method string, args ...any) (v T, err error) {
	err = r.do(&v, method, args...)
	return v, err
}

func (r *remote) Start(s Setup) error                { return r.do(nil, "Start", s) }
func (r *remote) Stop() error                        { return r.do(nil, "Stop") }
func (r *remote) Clean() error                       { return r.do(nil, "Clean") }
func (r *remote) NewQP(sends int) (Address, error)   { return get[Address](r, "NewQP", sends) }
func (r *remote) CloseQP(num uint32) error           { return r.do(nil, "CloseQP", num) }
func (r *remote) Fill(slot int, data []byte) error   { return r.do(nil, "Fill", slot, data) }
func (r *remote) Bytes(slot, n int) ([]byte, error)  { return get[[]byte](r, "Bytes", slot, n) }
func (r *remote) PostRecv(slots ...int) (int, error) { return get[int](r, "PostRecv", slots) }

func (r *remote) Share(access verbs.Access) (Shared, error) {
	return get[Shared](r, "Share", access)
}

func (r *remote) Shared(n int) ([]byte, error) { return get[[]byte](r, "Shared", n) }

func (r *remote) Connect(num uint32, peer Address, a Attr, to verbs.QPState) error {
	return r.do(nil, "Connect", num, peer, a, to)
}

func (r *remote) Move(num uint32, to verbs.QPState) error { return r.do(nil, "Move", num, to) }

func (r *remote) State(num uint32) (verbs.QPState, error) {
	return get[verbs.QPState](r, "State", num)
}

func (r *remote) PostSend(num uint32, wrs ...WR) (int, error) {
	return get[int](r, "PostSend", num, wrs)
}

func (r *remote) Poll(n int, wait time.Duration) ([]verbs.WC, error) {
	return get[[]verbs.WC](r, "Poll", n, wait)
}

func (r *remote) Event(t verbs.EventType, wait time.Duration) (verbs.Event, error) {
	return get[verbs.Event](r, "Event", t, wait)
}

func (r *remote) Refused() (map[string]syscall.Errno, error) {
	return get[map[string]syscall.Errno](r, "Refused")
}
