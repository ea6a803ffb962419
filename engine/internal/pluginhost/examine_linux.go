package pluginhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/sdk"
)

const (
	// maxFindings and maxFindingText bound what a plugin can make people read.
	maxFindings    = 256
	maxFindingText = 1000

	rebuild = "rebuild it with this version's sdk"
)

// fewFiles is how many open files are few: a plugin takes about ten, a peer one
// or two.
const fewFiles = 1024

// ExamineHost finds out what keeps this process from running any plugin.
func ExamineHost(opts Options) []sdk.Finding {
	var x examination
	if dir, err := checkRunDir(opts.RunDir); err != nil {
		x.add("run directory", sdk.FindingProblem, err.Error(), "set plugins.run_dir to a directory with a short name that this user can write")
	} else {
		x.add("run directory", sdk.FindingOK, dir, "")
	}
	var files unix.Rlimit
	switch err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); {
	case err != nil:
		x.problem("open files", err)
	case files.Max < fewFiles: // the runtime raises the soft limit
		x.add("open files", sdk.FindingWarning, fmt.Sprintf("at most %d: enough for few peers only", files.Max),
			"raise the limit: ulimit -n, LimitNOFILE in a systemd unit, --ulimit nofile for docker")
	default:
		x.add("open files", sdk.FindingOK, fmt.Sprintf("at most %d", files.Max), "")
	}
	return x.findings
}

// Examine finds out whether a transport could be started here: its binary,
// its settings, the addresses that it would listen on, and what it finds
// itself when it is run with --doctor, as the user and with the limits of this
// process. A plugin that hangs or crashes is a finding. Nothing is configured,
// and no address is taken from anybody. The description is empty if there was
// none.
func Examine(ctx context.Context, spec Spec, opts Options) (sdk.Description, []sdk.Finding) {
	opts = opts.withDefaults()
	if spec.InProcess != nil {
		t := spec.InProcess()
		x := examination{spec: spec, opts: opts, description: t.Describe()}
		x.check(func() {
			if e, ok := t.(sdk.Examiner); ok {
				x.take(e.Examine(ctx, orEmpty(spec.Settings)))
			}
		})
		return x.description, x.findings
	}
	x := examination{spec: spec, opts: opts}
	img, err := openImage(spec.Path, spec.SHA256, opts.Log)
	if err != nil {
		x.problem("binary", err)
		return x.description, x.findings
	}
	defer img.close()
	env, err := userEnvironment(spec.Env)
	if err != nil {
		x.problem("env", err)
		return x.description, x.findings
	}
	if x.description, err = describeImage(ctx, img, spec.Path, env); err == nil {
		err = checkDescription(x.description)
	}
	if err != nil {
		x.problem("binary", fmt.Errorf("%s: %w", spec.Path, err))
		return sdk.Description{}, x.findings
	}
	x.check(func() { x.ask(ctx, img, env) })
	return x.description, x.findings
}

// examination is one transport's.
type examination struct {
	spec        Spec
	opts        Options
	description sdk.Description
	findings    []sdk.Finding
}

func (x *examination) add(subject string, state sdk.FindingState, found, do string) {
	x.findings = append(x.findings, sdk.Finding{Subject: subject, State: state, Found: found, Do: do})
}

func (x *examination) problem(subject string, err error) {
	x.add(subject, sdk.FindingProblem, strings.TrimPrefix(err.Error(), "transport "+x.spec.Name+": "), "")
}

// check looks at what every transport has, and has it look at the rest.
func (x *examination) check(itself func()) {
	d := x.description
	x.add("plugin", sdk.FindingOK, strings.TrimSpace(fmt.Sprintf("%s %s %s", d.Name, clip(printable([]byte(d.Version)), 64), x.spec.Path)), "")
	if err := CheckSettings(x.spec.Name, d.ConfigSchema, x.spec.Settings); err != nil {
		x.problem("settings", err)
		return // it would look with other ones
	}
	x.listeners()
	itself()
}

// listeners sees whether the addresses can be bound that the engine would bind
// for the transport.
func (x *examination) listeners() {
	check := x.opts.CheckListen
	if x.opts.Keys != nil && x.spec.Keys && x.description.Has(sdk.FeatureKeys) {
		check = func(string) error { return nil }
	}
	for _, l := range x.description.Listeners {
		subject := "config." + l.Key
		address, err := listenAddress(x.spec.Name, l, x.spec.Settings)
		if err == nil {
			err = check(address)
		}
		if err != nil {
			x.problem(subject, err)
			continue
		}
		switch err = bindable(address); {
		case err == nil:
			x.add(subject, sdk.FindingOK, address+" can be listened on", "")
		case errors.Is(err, syscall.EADDRINUSE):
			x.add(subject, sdk.FindingWarning, address+" is listened on already: by a node that runs here, or by another program",
				"if no node of this configuration runs, choose another address, or port 0 for any free port (`ss -ltnp` says who listens)")
		default:
			x.problem(subject, fmt.Errorf("%s: %w", address, err))
		}
	}
}

// bindable says why nobody could listen on an address. It binds it and does
// not listen: that hinders nobody who does, now or at the same moment.
func bindable(address string) error {
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return err
	}
	family, to := unix.AF_INET6, unix.Sockaddr(nil)
	if ip := a.IP.To4(); ip != nil {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(ip)}
	} else {
		in6 := &unix.SockaddrInet6{Port: a.Port}
		copy(in6.Addr[:], a.IP)
		if zone, err := net.InterfaceByName(a.Zone); err == nil {
			in6.ZoneId = uint32(zone.Index)
		}
		to = in6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	return unix.Bind(fd, to)
}

// ask runs the plugin with --doctor.
func (x *examination) ask(ctx context.Context, img *image, env []string) {
	limited, cancel := context.WithTimeout(ctx, x.opts.StartTimeout)
	defer cancel()
	settings, err := memoryFile("settings", orEmpty(x.spec.Settings))
	var said brief
	if err == nil {
		defer settings.Close()
		said, err = runBriefly(limited, img, x.spec.Path, env, settings, "--doctor", "-")
	}
	var answer sdk.Examined
	words := lastOutput([]byte(said.errs), "")
	switch {
	case err != nil:
		x.problem("examination", err)
	case ctx.Err() != nil:
		x.add("examination", sdk.FindingProblem, "interrupted", "")
	case limited.Err() != nil:
		x.add("examination", sdk.FindingProblem, fmt.Sprintf("it has not ended within %v and was killed; its last words: %s", x.opts.StartTimeout, words),
			"run `"+x.spec.Path+" --doctor`; a driver may hang")
	case said.state.ExitCode() != 0 && knowsNoDoctor(said.errs):
		x.add("examination", sdk.FindingWarning, "its binary knows no --doctor: it was built with an older sdk, so that it cannot say what it finds here", rebuild)
	case said.state.ExitCode() != 0:
		x.add("examination", sdk.FindingProblem, fmt.Sprintf("it ended with %v; its last words: %s", said.state, words), "run `"+x.spec.Path+" --doctor`")
	case len(said.out) > maxDescribed:
		x.add("examination", sdk.FindingProblem, fmt.Sprintf("its answer has more than %d bytes", maxDescribed), rebuild)
	case json.Unmarshal(said.out, &answer) != nil || answer.Contract == 0:
		x.add("examination", sdk.FindingProblem, "its answer is not what a Hawser plugin says: "+lastOutput(said.out, said.errs), rebuild)
	case !answer.Examines:
		x.add("examination", sdk.FindingOK, "it has none of its own", "")
	default:
		x.take(answer.Findings)
	}
}

// knowsNoDoctor recognises what a plugin says that was built before --doctor,
// and what one says that was built without the sdk: go-plugin's own words.
func knowsNoDoctor(said string) bool {
	return strings.Contains(said, `unknown: "--doctor"`) || strings.Contains(said, "This binary is a plugin")
}

// take takes over the plugin's own findings.
func (x *examination) take(list []sdk.Finding) {
	if len(list) > maxFindings {
		x.add("examination", sdk.FindingWarning, fmt.Sprintf("it has %d findings; %d are shown", len(list), maxFindings), "")
		list = list[:maxFindings]
	}
	text := func(s string) string { return clip(printable([]byte(s)), maxFindingText) }
	for _, f := range list {
		if !f.State.Valid() {
			x.add("examination", sdk.FindingProblem, fmt.Sprintf("it has a finding of state %q, which is none", clip(string(f.State), 64)), rebuild)
			continue
		}
		x.add(text(f.Subject), f.State, text(f.Found), text(f.Do))
	}
}

// memoryFile is a file that a child can read from its start.
func memoryFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("hawser:"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err = f.Write(content); err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
