package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// diagnosed is what doctor says.
type diagnosed struct {
	OK         bool     `json:"ok"`
	Carry      []string `json:"carry"`
	Transports []struct {
		Transport string `json:"transport"`
		ByDefault bool   `json:"by_default"`
		Carries   bool   `json:"carries"`
		Findings  []struct {
			Subject, State, Found, Do string
		} `json:"findings"`
	} `json:"transports"`
}

func (d diagnosed) text(transport string) string {
	var b strings.Builder
	for _, x := range d.Transports {
		for _, f := range x.Findings {
			if x.Transport == transport {
				fmt.Fprintf(&b, "%s|%s|%s|%s\n", f.Subject, f.State, f.Found, f.Do)
			}
		}
	}
	return b.String()
}

// doctor runs the command, and sees that its exit code is what it says.
func doctor(t *testing.T, args ...string) diagnosed {
	t.Helper()
	out, errs, code := output(t, hawser(t, append([]string{"doctor", "-o", "json"}, args...)...))
	var d diagnosed
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	if want := map[bool]int{true: 0, false: 2}[d.OK]; code != want {
		t.Errorf("exit code %d, want %d", code, want)
	}
	return d
}

// Each kind of machine, with the real binaries, on simulated verbs.
func TestDoctorRDMA(t *testing.T) {
	gid := func(index int, addr string, kind int) string {
		return fmt.Sprintf(`{"Index": %d, "Addr": %q, "Type": %d}`, index, addr, kind)
	}
	device := func(device, port string, gids ...string) string {
		return fmt.Sprintf(`"Devices": [{"Name": "sim0", %s "Ports": [{"Netdev": "eth7", %s "GIDs": [%s]}]}]`, device, port, strings.Join(gids, ","))
	}
	const local, v4 = "fe80::1", "::ffff:10.77.0.1"
	for _, c := range []struct {
		name, host string
		carries    bool
		want       []string
	}{
		{"well", device("", "", gid(0, local, 2), gid(1, v4, 1), gid(2, v4, 2)), true,
			[]string{"port sim0/1|ok|active", "eth7, GID 2 10.77.0.1 roce-v2 (of 3: RoCE v2 over v1, global over link-local)"}},
		{"no library", `"Missing": "libibverbs.so.1"`, false, []string{"devices|absent|missing libibverbs.so.1"}},
		{"no device", `"Devices": []`, false, []string{"devices|absent|no RDMA device|an RDMA device with its driver is needed"}},
		{"no permission", device(`"OpenError": 13,`, "", gid(0, v4, 2)), false, []string{"device sim0|problem|", "permission denied|let this user open /dev/infiniband"}},
		{"memlock too low", device(`"Memlock": 65536,`, "", gid(0, v4, 2)), false, []string{"device sim0|problem|missing locked memory for 2048 KiB"}},
		{"port down", device("", `"Down": true,`, gid(0, v4, 2)), false, []string{"port sim0/1|problem|down", "|`ip link set eth7 up`"}},
		{"only a link-local GID", device("", "", gid(0, local, 2)), true, []string{"port sim0/1|warning|active", "GID 0 fe80::1 roce-v2 (the only one)|a link-local GID"}},
		{"v1 only", device("", "", gid(0, v4, 1)), true, []string{"port sim0/1|warning|active", "GID 0 10.77.0.1 roce-v1 (the only one)|RoCE v1"}},
		{"no GID", device("", ""), false, []string{"port sim0/1|problem|active", "|give eth7 an address"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "hd") // t.TempDir is too long for sockets
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			host, config := filepath.Join(dir, "host.json"), filepath.Join(dir, "c.yaml")
			for file, text := range map[string]string{
				host:   `{"Host": "h", ` + c.host + `}`,
				config: "notification: {rpc_fallback: false}\ntransports: [{name: rdma, env: {HAWSER_RDMA_SIM: " + host + "}}, {name: tcp}]\n",
			} {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			d := doctor(t, "--config", config)
			text := d.text("rdma")
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			if d.OK != c.carries || d.Transports[0].Carries != c.carries || !d.Transports[1].Carries {
				t.Errorf("ok %v, carry %v:\n%s", d.OK, d.Carry, text)
			}
			// For people, what to do is there too.
			out, _, _ := output(t, hawser(t, "doctor", "--config", config, "rdma"))
			for _, f := range d.Transports[0].Findings {
				if !strings.Contains(out, f.Found) || f.Do != "" && !strings.Contains(out, "do: "+f.Do) || strings.Contains(out, "\ntcp") {
					t.Errorf("no %+v in\n%s", f, out)
				}
			}
		})
	}
}

// Without a word about transports, rdma is tried, and its absence is no problem;
// a machine that has some is told what it has.
func TestDoctorByDefault(t *testing.T) {
	d := doctor(t)
	if len(d.Transports) != 4 || d.Transports[0].Transport != "rdma" || !d.Transports[0].ByDefault || d.Transports[1].ByDefault || !d.Transports[1].Carries {
		t.Fatalf("%+v", d)
	}
	if strings.Contains(d.text("rdma"), "|absent|") && !d.OK {
		t.Errorf("there is nothing for rdma, and that is a problem: %+v", d)
	}
	if strings.Contains(d.text("rdma"), "|absent|") && doctor(t, "rdma", "tcp").OK {
		t.Error("rdma was asked for, and its absence is no problem")
	}
}

// Doctor looks at a running node's machine, whose port it leaves alone.
func TestDoctorBesideANode(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	config := filepath.Join(t.TempDir(), "c.yaml")
	text := fmt.Sprintf("transports: [{name: tcp, config: {listen: %q}}]\n", taken.Addr())
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := doctor(t, "--config", config)
	if got := d.text("tcp"); !strings.Contains(got, "config.listen|warning|"+taken.Addr().String()+" is listened on already") {
		t.Error(got)
	}
}

// What is no good before anything is examined is not a finding.
func TestDoctorWithoutAConfiguration(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--config", "/nowhere"}, "/nowhere"},
		{[]string{"T!"}, `"T!" is no name of a transport`},
		{[]string{"RDMA"}, `"RDMA" is no name of a transport`},
		{[]string{"rdma", "rdma"}, "rdma is named twice"},
		{[]string{"--plugins-dir", "/nowhere"}, "/nowhere"},
	} {
		_, errs, code := output(t, hawser(t, append([]string{"doctor"}, c.args...)...))
		if code != 1 || !strings.Contains(errs, c.want) || strings.Contains(errs, "transports[") {
			t.Errorf("%v: %d, %s", c.args, code, errs)
		}
	}
}

// A simulated host that is not as it should be is a fault of its own: the
// machine lacks nothing.
func TestDoctorOfAWrongSimulation(t *testing.T) {
	dir := t.TempDir()
	host, config := filepath.Join(dir, "host.json"), filepath.Join(dir, "c.yaml")
	text := "transports: [{name: rdma, env: {HAWSER_RDMA_SIM: " + host + "}}]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := doctor(t, "--config", config, "rdma").text("rdma")
	if want := "devices|problem|HAWSER_RDMA_SIM: the simulated host: open " + host + ": no such file or directory|\n"; !strings.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, got)
	}
}
