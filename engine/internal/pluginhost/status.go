package pluginhost

import (
	"maps"
	"slices"
	"time"
)

// State is what a supervised transport is doing.
type State string

const (
	// Starting: the first instance is being started.
	Starting State = "starting"
	// Up: an instance can be used.
	Up State = "up"
	// Restarting: there is no instance, there will soon be one.
	Restarting State = "restarting"
	// Quarantined: there is no instance, and none is tried for minutes.
	Quarantined State = "quarantined"
	// Unsupported: there is no instance, since this machine lacks what the
	// transport needs, as its last error says. It is tried again as rarely as
	// a quarantined one: somebody may bring it.
	Unsupported State = "unsupported"
	// Stopped: Stop was called.
	Stopped State = "stopped"
)

// Status is a supervisor's state, for people.
type Status struct {
	Name  string
	State State
	Since time.Time
	// Instance, PID, Carrier, Transport and Version are those of the instance
	// that is up. PID is 0 in process.
	Instance           uint64
	PID                int
	Carrier            string
	Transport, Version string
	// Restarts counts starts after the first.
	Restarts uint64
	// LastError is why the last instance ended or did not start, and Stderr
	// the end of what it wrote.
	LastError error
	Stderr    []string
	// Abandoned counts instances that were killed and did not die.
	Abandoned int
	// Dropped counts what instances sent of endpoints and frames that they do
	// not have.
	Dropped uint64
	// Listeners tells where the transport's listeners really listen.
	Listeners map[string]string
}

// Status returns the present state.
func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.mu.status
	st.Abandoned = s.mu.abandoned
	st.Listeners = maps.Clone(st.Listeners)
	for _, r := range s.mu.live {
		st.Dropped += r.dropped()
	}
	return st
}

// dropped is what the instance's transport dropped, if it counts that.
func (r *running) dropped() uint64 {
	if d, ok := r.inst.Transport.(dropping); ok {
		return d.Dropped()
	}
	return 0
}

func (s *Supervisor) name() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.status.Name
}

func (s *Supervisor) setState(state State, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.status.State, s.mu.status.Since = state, time.Now()
	if err != nil {
		s.mu.status.LastError = err
	}
}

func (s *Supervisor) setUp(r *running) {
	where := s.sockets.addresses()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.mu.status
	s.mu.live = append(s.mu.live, r)
	st.State, st.Since = Up, r.since
	st.Instance, st.PID, st.Carrier = r.inst.ID, r.pid(), r.carrier()
	st.Transport, st.Version = r.inst.Description.Name, r.inst.Description.Version
	st.Listeners = where
}

func (s *Supervisor) setDown(r *running, err error) {
	lines := r.lastLines()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.mu.status
	st.Dropped += r.dropped() // it has ended: that is all
	s.mu.live = slices.DeleteFunc(s.mu.live, func(l *running) bool { return l == r })
	if err != nil {
		st.LastError, st.Stderr = err, lines
	}
	if st.Instance == r.inst.ID {
		st.Instance, st.PID, st.Carrier = 0, 0, ""
		st.State, st.Since = Restarting, time.Now()
	}
}

func (s *Supervisor) countRestart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.status.Restarts++
}

func (s *Supervisor) addAbandoned(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.abandoned += n
	return s.mu.abandoned
}
