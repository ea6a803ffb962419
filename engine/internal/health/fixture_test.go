package health

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at is so many seconds after the start.
func at(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }

// since is the other way around, for messages.
func since(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return fmt.Sprint(t.Sub(start).Seconds())
}

func peerOptions() PeerOptions {
	return PeerOptions{
		Enable: true, Cooldown: 5 * time.Second, MaxCooldown: time.Minute,
		ProbeInterval: time.Second, ProbeTimeout: 2 * time.Second, MaxAge: 10 * time.Minute,
	}
}

func pathOptions() PathOptions {
	return PathOptions{ErrorThreshold: 3, ErrorWindow: 10 * time.Second, Cooldown: 30 * time.Second, MaxCooldown: 300 * time.Second}
}

// told puts peer events into words.
func told(es []PeerEvent) string {
	var words []string
	for _, e := range es {
		w := [...]string{"?", "silent", "resumed", "forgotten"}[e.Kind] + " " + e.Address
		if !e.Until.IsZero() {
			w += " " + since(e.Until)
		}
		words = append(words, w)
	}
	return strings.Join(words, ", ")
}

// heard puts path events into words.
func heard(es []PathEvent) string {
	var words []string
	for _, e := range es {
		w := [...]string{"?", "paused", "resumed"}[e.Kind] + " " + e.Key.Path
		if !e.Until.IsZero() {
			w += " " + since(e.Until)
		}
		words = append(words, w)
	}
	return strings.Join(words, ", ")
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

func allowed(t *testing.T, p *Peers, address string, now time.Time, ok bool) {
	t.Helper()
	if got, until := p.Allow(address, now); got != ok {
		t.Fatalf("%s at %s: allowed %v (until %s), want %v", address, since(now), got, since(until), ok)
	}
}

// due is whom Due wants asked.
func due(t *testing.T, p *Peers, now time.Time, addresses ...string) []PeerEvent {
	t.Helper()
	got, events := p.Due(now)
	if !slices.Equal(got, addresses) {
		t.Fatalf("due at %s: %v, want %v", since(now), got, addresses)
	}
	return events
}

func nextIs(t *testing.T, got, want time.Time) {
	t.Helper()
	if !got.Equal(want) {
		t.Fatalf("next is at %s, want %s", since(got), since(want))
	}
}
