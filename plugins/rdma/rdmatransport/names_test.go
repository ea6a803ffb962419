package rdmatransport

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hawser-transport/hawser/sdk"
)

// What is wrong with names and GIDs whatever the machine has is found without
// it, and told with its key; most of it by the schema, too.
func TestNames(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	must(t, err)
	c := jsonschema.NewCompiler()
	must(t, c.AddResource("rdma", doc))
	compiled, err := c.Compile("rdma")
	must(t, err)
	for _, c := range []struct {
		settings string
		want     string // in the error; "" for none
		lax      bool   // the schema cannot tell
	}{
		{settings: `{"devices": ["mlx5_0", "mlx5_1/1", "mlx5_1/255", "rxe-0.1"], "gids": {"mlx5_0": 3, "mlx5_1/1": "fe80::1", "x": "10.0.0.1"}}`},
		{settings: `{"devices": ["mlx5_0/2", "mlx5_0"]}`}, // the rest comes after it
		{settings: `{"devices": ["sim0/x"]}`, want: `devices holds "sim0/x", must be a device`},
		{settings: `{"devices": ["a/b/c"]}`, want: `devices holds "a/b/c"`},
		{settings: `{"devices": ["mlx5_0/0"]}`, want: `devices holds "mlx5_0/0"`},
		{settings: `{"devices": ["mlx5_0/01"]}`, want: `devices holds "mlx5_0/01"`},
		{settings: `{"devices": ["mlx5_0/256"]}`, want: `devices holds "mlx5_0/256"`, lax: true},
		{settings: `{"devices": ["mlx5_0/1000"]}`, want: `devices holds "mlx5_0/1000"`},
		{settings: `{"devices": ["mlx5_0/"]}`, want: `devices holds "mlx5_0/"`},
		{settings: `{"devices": ["/1"]}`, want: `devices holds "/1"`},
		{settings: `{"devices": [" "]}`, want: `devices holds " "`},
		{settings: `{"devices": [""]}`, want: `devices holds ""`},
		{settings: `{"devices": ["mlx5_0\n"]}`, want: `devices holds "mlx5_0\n"`},
		{settings: `{"devices": ["mlx5_0", "mlx5_0"]}`, want: `devices holds "mlx5_0" after "mlx5_0"`},
		{settings: `{"devices": ["mlx5_0/1", "mlx5_0/1"]}`, want: `devices holds "mlx5_0/1" after "mlx5_0/1"`},
		{settings: `{"devices": ["mlx5_0", "mlx5_0/1"]}`, want: `devices holds "mlx5_0/1" after "mlx5_0", which it is a part of`, lax: true},
		{settings: `{"gids": {"mlx5_0/x": 1}}`, want: `gids has the name "mlx5_0/x"`},
		{settings: `{"gids": {"mlx5_0": "fe80::zz"}}`, want: `gids: mlx5_0: "fe80::zz" is neither`},
		{settings: `{"gids": {"mlx5_0": "fe80::1%eth0"}}`, want: `gids: mlx5_0: "fe80::1%eth0" is neither`},
		{settings: `{"gids": {"mlx5_0": "fe80"}}`, want: `gids: mlx5_0: "fe80" is neither`, lax: true},
		{settings: `{"gids": {"mlx5_0": "::"}}`, want: `gids: mlx5_0: "::" is neither`, lax: true},
		{settings: `{"gids": {"mlx5_0": -1}}`, want: `gids: mlx5_0: -1 is neither`},
		{settings: `{"gids": {"mlx5_0": 65536}}`, want: `gids: mlx5_0: 65536 is neither`},
		{settings: `{"gids": {"mlx5_0": null}}`, want: `gids: mlx5_0: null is neither`},
		{settings: `{"gids": ["mlx5_0"]}`, want: `gids: `},
		{settings: `{"endpoint": {"rnr_retry": 7}}`},
		{settings: `{"endpoint": {"rnr_retry": 6}}`, want: `endpoint.rnr_retry is pinned to 7`},
	} {
		_, err := parseSettings(json.RawMessage(c.settings))
		if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, sdk.InvalidArgument) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.settings, err, c.want)
		}
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(c.settings))
		must(t, err)
		if err := compiled.Validate(value); (err == nil) != (c.want == "" || c.lax) {
			t.Errorf("%s: the schema says %v", c.settings, err)
		}
	}
}
