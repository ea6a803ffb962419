//go:build linux

package pluginhost

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

const (
	// actorEnv says, through Spec.Env, what the test binary is to be.
	actorEnv = "TEST_ACTOR"
	// describedEnv does so where nothing can be passed: it is on the
	// allow-list by its prefix.
	describedEnv = "UCX_TEST_ACTOR"
)

// actors are what the test binary can be.
var actors map[string]func()

func init() {
	actors = map[string]func(){
		"good":      func() { sdk.Serve(&player{}) },
		"exclusive": func() { sdk.Serve(&player{exclusive: true}) },
		"listener":  func() { sdk.Serve(&player{listens: true}) },
		"chatty":    func() { sdk.Serve(&player{configured: chat}) },
		"grpc link": func() { _ = os.Unsetenv(sdk.EnvLinkFD); sdk.Serve(&player{}) },
		"no device": func() { sdk.Serve(&player{fault: sdk.Errorf(sdk.Unsupported, "no RDMA device here")}) },
		"contract":  func() { sdk.Serve(&player{contract: 99}) },
		"dies":      func() { sdk.Serve(&player{configured: func() { fmt.Fprintln(os.Stderr, "oh no"); os.Exit(3) }}) },
		"family":    func() { bear(); sdk.Serve(&player{}) },
		"stubborn":  func() { sdk.Serve(&player{closing: func() { select {} }}) },
		"noisy": func() {
			_, _ = syscall.Write(1, []byte("UCX says hello\n1|2|3|4|5\n"))
			sdk.Serve(&player{configured: shout})
		},
		"killed": func() { die(syscall.SIGKILL) },
		"ended":  func() { die(syscall.SIGTERM) },
		"killed late": func() {
			_, _ = syscall.Write(handshakeFD, []byte("1|1|unix|"+socketPath()+"|grpc|"+certificate()+"\n"))
			die(syscall.SIGKILL)
		},
		"killed twice": func() { dieTwice(); sdk.Serve(&player{}) },
		"lets go":      func() { _ = syscall.Close(handshakeFD); time.Sleep(time.Hour) },
		"silent":       func() { time.Sleep(time.Hour) },
		"cookie":       func() { _ = os.Setenv(sdk.PluginCookieKey, "x"); sdk.Serve(&player{}) },
		"old":          func() { handshake("1|99|unix|/nowhere|grpc|") },
		"elsewhere":    func() { handshake("1|1|tcp|127.0.0.1:22|grpc|" + strings.Repeat("A", 100)) },
		"plain":        func() { handshake("1|1|unix|" + socketPath() + "|grpc|") },
		"bad cert":     func() { handshake("1|1|unix|" + socketPath() + "|grpc|" + strings.Repeat("A", 100)) },
		"cert":         func() { handshake("1|1|unix|" + socketPath() + "|grpc|" + certificate()) },
		"endless":      func() { handshake(strings.Repeat("A", 1<<20)) },
		"host":         beHost,
		"babble":       func() { babble(); sdk.Serve(&player{}) },
		"environ":      func() { fmt.Fprintln(os.Stderr, strings.Join(os.Environ(), "\n")); os.Exit(9) },
		"binary log":   func() { sdk.Serve(&player{configured: binaryLog}) },
		"examiner":     func() { sdk.Serve(examiner(examined)) },
		"hangs": func() {
			sdk.Serve(examiner(func(json.RawMessage) []sdk.Finding { fmt.Fprintln(os.Stderr, "asking the driver"); select {} }))
		},
		"crashes":   func() { sdk.Serve(examiner(func(json.RawMessage) []sdk.Finding { panic("a bug of the plugin's") })) },
		"nonsense":  func() { sdk.Serve(examiner(nonsense)) },
		"no doctor": func() { answersDoctor(1, "t: unknown: \"--doctor\" \"-\"\n", "") },
		"other":     func() { answersDoctor(0, "", "all is well\n") },
		"too much":  func() { answersDoctor(0, "", strings.Repeat("x", maxDescribed+1)) },
	}
}

// player is a well-behaved transport: what is sent comes back.
type player struct {
	contract           int
	exclusive, listens bool
	fault              error
	configured         func()
	closing            func()
}

func (p *player) Describe() sdk.Description {
	d := sdk.Description{
		Name: "player", Version: "1.0", Contract: sdk.ContractVersion, SharedDevice: !p.exclusive,
		Features: []sdk.Feature{sdk.FeatureNotify, sdk.FeatureDrain},
		Limits:   sdk.Limits{MaxFrame: sdk.MaxFrameLimit, InflightBytes: 64 << 20},
	}
	if p.contract != 0 {
		d.Contract = p.contract
	}
	if p.listens {
		d.ConfigSchema = []byte(`{"type":"object","properties":{"listen":{"type":"string"}},"additionalProperties":false}`)
		d.Listeners = []sdk.ListenerSpec{{Name: "main", Key: "listen", Default: "127.0.0.1:0"}}
	}
	return d
}

func (p *player) Configure(_ context.Context, cfg sdk.Config) (sdk.Setup, error) {
	if p.configured != nil {
		p.configured()
	}
	s := sdk.Setup{Attributes: sdk.Attributes{"instance": fmt.Sprint(cfg.Instance), "pid": fmt.Sprint(os.Getpid())}}
	for name, l := range cfg.Listeners {
		s.Attributes["at "+name] = l.Addr().String()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "%d\n", cfg.Instance)
				_ = c.Close()
			}
		}()
	}
	cfg.Log.Info("configured", "answer", 42, "transport", "forged")
	return s, p.fault
}

func (p *player) Close(context.Context) error {
	if p.closing != nil {
		p.closing()
	}
	return nil
}

func (p *player) Drain(context.Context) error             { return nil }
func (p *player) Paths(sdk.Attributes) ([]string, error)  { return []string{"only"}, nil }
func (p *player) Probe(context.Context, sdk.Target) error { return nil }
func (p *player) Accept(_ context.Context, _ sdk.Target, _ []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	return newMirror(h), nil, nil
}

func (p *player) Connect(_ context.Context, _ sdk.Target, _ sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	return newMirror(h), nil
}

// mirror is an endpoint to oneself.
type mirror struct {
	h    sdk.Handler
	work chan []sdk.Frame
	done chan struct{}
	once sync.Once
}

func newMirror(h sdk.Handler) *mirror {
	m := &mirror{h: h, work: make(chan []sdk.Frame, 64), done: make(chan struct{})}
	go func() {
		for {
			select {
			case fs := <-m.work:
				for _, f := range fs {
					m.h.Received([][]byte{f.Data})
					m.h.Completed([]sdk.Completion{{ID: f.ID, Outcome: sdk.Done}})
				}
			case <-m.done:
				m.h.Ended(sdk.Closed)
				return
			}
		}
	}()
	return m
}

func (m *mirror) Send(fs []sdk.Frame, _ bool) (int, error) {
	var own []sdk.Frame
	for _, f := range fs {
		own = append(own, sdk.Frame{ID: f.ID, Data: append([]byte(nil), f.Data...)})
	}
	select {
	case m.work <- own:
		return len(fs), nil
	default:
		return 0, sdk.Backpressure
	}
}

func (m *mirror) Close() { m.once.Do(func() { close(m.done) }) }

// die ends by a signal, as by the kernel's when memory is short.
func die(s syscall.Signal) {
	_ = syscall.Kill(os.Getpid(), s)
	select {}
}

// dieTwice dies unless two before it have.
func dieTwice() {
	for _, name := range []string{"/one", "/two"} {
		if f, err := os.OpenFile(os.Getenv("TEST_DEATHS")+name, os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_ = f.Close()
			die(syscall.SIGKILL)
		}
	}
}

// handshake writes a line where the handshake belongs, and stays.
func handshake(line string) {
	_, _ = syscall.Write(handshakeFD, []byte(line+"\n"))
	time.Sleep(time.Hour)
}

// socketPath is the name of a socket on which nobody answers.
func socketPath() string {
	path := os.Getenv("PLUGIN_UNIX_SOCKET_DIR") + "/s"
	if _, err := net.Listen("unix", path); err != nil {
		panic(err)
	}
	return path
}

// certificate is one that parses.
func certificate() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return base64.RawStdEncoding.EncodeToString(der)
}

// chat writes what makes go-plugin's own reader of stderr panic.
func chat() { _, _ = syscall.Write(2, []byte(`{"@message": 1, "@level": "info"}`+"\n")) }

// shout writes a line of one megabyte to stdout.
func shout() {
	line := []byte(strings.Repeat("x", 1<<20))
	for len(line) > 0 {
		n, err := syscall.Write(1, line)
		if err != nil {
			os.Exit(8)
		}
		line = line[n:]
	}
	_, _ = syscall.Write(1, []byte("\nand goes on\n"))
}

func binaryLog() {
	shout()
	_, _ = syscall.Write(2, []byte("\x00\xff\x1b[31mred\xf0\n"))
}

// babble floods the log.
func babble() {
	w := bufio.NewWriter(os.Stderr)
	for i := range 50000 {
		fmt.Fprintf(w, "line %d\n", i)
	}
	_ = w.Flush()
}

// bear starts a child that holds everything open and never ends by itself.
func bear() {
	c := exec.Command("/bin/sleep", "1000")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		panic(err)
	}
	fmt.Fprintf(os.Stderr, "child %d\n", c.Process.Pid)
}

// beHost supervises one good plugin and one that never gets to its handshake,
// so that it watches no pipe, until it is killed.
func beHost() {
	rec := newRecorder()
	o := Options{RunDir: os.Getenv("TEST_RUN_DIR"), StartTimeout: time.Hour}
	path, _ := os.Executable()
	good := New(Spec{Name: "good", Path: path, Env: map[string]string{actorEnv: "good"}}, o, rec)
	good.Start()
	if err := good.Ready(context.Background()); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	img, err := openImage("/bin/sleep", "", good.log)
	if err != nil {
		panic(err)
	}
	c, err := spawn(img, "sleep", []string{"1000"}, nil, make([]*os.File, 3))
	if err != nil {
		panic(err)
	}
	fmt.Println(good.Status().PID, c.pid)
	select {}
}
