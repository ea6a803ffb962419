package pluginhost

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/hawser-transport/hawser/sdk"
)

// passedOn lists the variables of the host that plugins get: how to find
// things, speak, and use the hardware. Everything else, secrets among it,
// stays here. A name that ends in an underscore stands for all that begin so.
var passedOn = []string{
	"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "LC_", "LD_LIBRARY_PATH",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_RUNTIME_DIR",
	"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK", "GORACE", "GOCOVERDIR",
	"CUDA_", "NVIDIA_", "NCCL_", "UCX_", "MLX5_", "MLX4_", "IBV_", "RDMAV_", "FI_",
	"HAWSER_CUDA_SIM", // application and plugin are on the same simulated machine
}

// hostEnvironment returns what plugins get of the host's environment.
func hostEnvironment() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if slices.ContainsFunc(passedOn, func(p string) bool {
			return name == p || strings.HasSuffix(p, "_") && strings.HasPrefix(name, p)
		}) {
			env = append(env, kv)
		}
	}
	return env
}

// userEnvironment returns what the configuration adds. It cannot touch what
// host and plugin tell each other.
func userEnvironment(add map[string]string) ([]string, error) {
	var env []string
	for name, value := range add {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return nil, sdk.Errorf(sdk.InvalidArgument, "env: %q cannot be a variable", clip(name, 64))
		}
		if strings.HasPrefix(name, "PLUGIN_") || strings.HasPrefix(name, "HAWSER_PLUGIN_") {
			return nil, sdk.Errorf(sdk.InvalidArgument, "env: %s is reserved for Hawser's own use", clip(name, 64))
		}
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env, nil
}

// ownEnvironment tells the plugin which descriptors it has inherited.
func ownEnvironment(log *slog.Logger) []string {
	return []string{
		sdk.EnvHandshakeFD + "=" + itoaFD(handshakeFD),
		sdk.EnvLinkFD + "=" + itoaFD(linkFD),
		sdk.EnvParentFD + "=" + itoaFD(parentFD),
		sdk.EnvLogLevel + "=" + lowestLevel(log).String(),
	}
}

func lowestLevel(log *slog.Logger) slog.Level {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
		if log.Enabled(context.Background(), l) {
			return l
		}
	}
	return slog.LevelError
}
