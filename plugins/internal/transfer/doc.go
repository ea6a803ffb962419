// Package transfer is the endpoints for memory of the transports over stream
// sockets: an [Active] end, which sends ops, and a [Passive] one, which carries
// them out on its application's regions. What is between them is a stream of
// bytes each way, see record.go; where it comes from is the transport's own.
//
// Bytes go from the one region into the stream and from the stream into the
// other, with no copy of this package's in between. The passive end looks the
// capability, the range and the permission of each op up before it touches a
// byte, and holds the region for as long as it does.
//
// An end that has ended touches nothing: Ended is called after both of its
// goroutines have returned. That is the fence which the engine relies on.
package transfer
