package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"
)

// MaxPeers is the most peers that one answer lists.
const MaxPeers = 10_000

const (
	dialTimeout = 2 * time.Second
	// maxAnswer bounds what is read of one answer.
	maxAnswer = 64 << 20
)

// ErrNobody: nothing listens on the socket.
var ErrNobody = errors.New("nothing listens there")

// Error is what the engine answered instead of doing what was asked.
type Error struct {
	Status int
	Failure
}

// Error returns the engine's words.
func (e *Error) Error() string { return e.Failure.Error }

// Client asks one engine's admin socket.
type Client struct {
	path string
	http *http.Client
}

// Dial returns a client of the socket at path. It connects with the first
// call.
func Dial(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := net.Dialer{Timeout: dialTimeout}
		return d.DialContext(ctx, "unix", path)
	}
	return &Client{path: path, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Path is the socket's.
func (c *Client) Path() string { return c.path }

// Node tells whose socket it is.
func (c *Client) Node(ctx context.Context) (n Node, err error) {
	return n, c.call(ctx, http.MethodGet, "/node", &n)
}

// Peers lists at most limit peers, or with 0 as many as an answer has.
func (c *Client) Peers(ctx context.Context, limit int) (p Peers, err error) {
	if limit <= 0 {
		limit = MaxPeers
	}
	return p, c.call(ctx, http.MethodGet, "/peers?limit="+strconv.Itoa(limit), &p)
}

// Transports lists the configured transports.
func (c *Client) Transports(ctx context.Context) (t []Transport, err error) {
	return t, c.call(ctx, http.MethodGet, "/transports", &t)
}

// Mappings lists regions as they are used between the engine and its peers.
func (c *Client) Mappings(ctx context.Context) (m []Mapping, err error) {
	return m, c.call(ctx, http.MethodGet, "/mappings", &m)
}

// RetireMappings is an operator's word that a peer, named by its address or the
// beginning of its incarnation, is gone. Said of one that is not, it breaks
// what the closing of regions promises.
func (c *Client) RetireMappings(ctx context.Context, peer string) (r Retired, err error) {
	return r, c.call(ctx, http.MethodPost, "/mappings/retire?peer="+url.QueryEscape(peer), &r)
}

// Stats returns the engine's counts, by name.
func (c *Client) Stats(ctx context.Context) (s map[string]int64, err error) {
	return s, c.call(ctx, http.MethodGet, "/stats", &s)
}

// Restart replaces a transport's plugin by a new instance, without losing a
// notification, and lifts a quarantine. It returns how the transport fares
// then.
func (c *Client) Restart(ctx context.Context, transport string) (t Transport, err error) {
	return t, c.call(ctx, http.MethodPost, "/transports/"+url.PathEscape(transport)+"/restart", &t)
}

func (c *Client) call(ctx context.Context, method, path string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://hawser"+path, nil)
	if err != nil {
		return err
	}
	r, err := c.http.Do(req)
	if err != nil {
		return c.explain(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer+1))
	switch {
	case err != nil:
		return c.explain(err)
	case len(body) > maxAnswer:
		return fmt.Errorf("admin socket %s: the answer has more than %d bytes", c.path, maxAnswer)
	case r.StatusCode != http.StatusOK:
		e := &Error{Status: r.StatusCode}
		if json.Unmarshal(body, &e.Failure) != nil || e.Failure.Error == "" {
			e.Failure.Error = "the engine answered " + r.Status
		}
		return e
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("admin socket %s: what answers there is no engine's admin socket: %w", c.path, err)
	}
	return nil
}

func (c *Client) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("admin socket %s: %w", c.path, ErrNobody)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("admin socket %s: only the user who runs the engine may ask: %w", c.path, fs.ErrPermission)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return fmt.Errorf("admin socket %s: %w", c.path, err)
}
