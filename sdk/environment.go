package sdk

// What a plugin's process finds in its environment. [Serve] reads these; they
// matter to hosts, and to plugins written without this package. Descriptors
// are decimal numbers of inherited file descriptors.
const (
	// PluginCookieKey and PluginCookieValue tell a plugin that a host started
	// it, not a person. They protect nothing.
	PluginCookieKey   = "HAWSER_PLUGIN_COOKIE"
	PluginCookieValue = "8c0f6e0b5d7a4c1e9a3b-hawser-transport"

	// EnvHandshakeFD is where the one line of the handshake goes. Without it
	// the line goes to standard output, which is then folded into standard
	// error, as in every case.
	EnvHandshakeFD = "HAWSER_PLUGIN_HANDSHAKE_FD"
	// EnvLinkFD is a connected unix stream socket: the link's carrier "unix".
	// Without it the link runs over gRPC.
	EnvLinkFD = "HAWSER_PLUGIN_LINK_FD"
	// EnvParentFD is the reading end of a pipe whose writing end only the
	// host holds: at its end the host is gone, and the plugin exits at once.
	EnvParentFD = "HAWSER_PLUGIN_PARENT_FD"
	// EnvLogLevel is the lowest level that is logged: DEBUG, INFO (default),
	// WARN or ERROR.
	EnvLogLevel = "HAWSER_PLUGIN_LOG_LEVEL"
)
