// Package sdktest helps to test transports and whatever uses them.
//
//   - [Run] is the conformance suite: every duty that the comments of package
//     sdk put on a transport, as a table of named cases.
//   - [Fabric] is an in-memory network. Its transports pass the suite, need no
//     I/O, and run in fake time under testing/synctest.
//   - [Faulty] wraps any transport and makes it drop, double, delay, reorder,
//     refuse, hang or die, with a seed, counting each fault.
//
// The package is for tests only: no plugin links it, except one that is meant
// to be faulty. It does not import the engine.
package sdktest
