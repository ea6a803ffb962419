package cli

import (
	"strings"
	"testing"
)

// The last line names what is absent, be it one transport or more.
func TestDoctorTellsWhatIsAbsent(t *testing.T) {
	absent := []examined{{Transport: "rdma", ByDefault: true}, {Transport: "mnnvl", ByDefault: true}}
	for n, want := range []string{
		"tcp can carry\n",
		"tcp can carry; nothing is here for rdma (tried by default)\n",
		"tcp can carry; nothing is here for rdma, mnnvl (tried by default)\n",
	} {
		var out strings.Builder
		diagnosis{OK: true, Carry: []string{"tcp"}, Transports: absent[:n]}.print(&out)
		if !strings.HasSuffix(out.String(), "\n"+want) {
			t.Errorf("%q does not end in %q", out.String(), want)
		}
	}
}
