// Package sdk is the contract between Hawser's engine and its transports, and
// everything a transport's author needs to write one.
//
// A transport is a dumb carrier: it connects, carries frames, reports what
// happened, and never retries, reorders by policy or deduplicates. All of that
// is done once, in the engine, for every transport. A transport implements
// [Transport] and as many of the small optional abilities ([Notifier],
// [Prober], [Drainer]) as it can, names them in [Description.Features], and
// calls [Serve] from main. The same Go value also runs inside the engine's
// process; nothing in the contract depends on the process boundary.
//
// The package imports none of the engine. No gRPC, hclog or protobuf type is
// part of its exported signatures.
package sdk
