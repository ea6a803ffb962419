// Package rdmalab is two virtual hosts with a real Linux RDMA stack: Debian's
// kernel with Soft-RoCE (rdma_rxe), run by QEMU. No RDMA hardware, KVM or
// root is needed. It shows how things behave, never how fast they are: a
// message takes milliseconds under emulation.
//
// Each host has the machine's whole file system read-only, with a throw-away
// layer on top, so that what was built here runs there, and a folder that is
// shared with the machine as /out. Host N, from 1, has
//
//	eth0, rxe0  10.77.0.N   rail 0
//	eth1, rxe1  10.77.1.N   rail 1
//	eth2        10.77.2.N   no rail: control plane, and tcp as another way
//	eth3        10.0.2.15   the agent, forwarded to a port of 127.0.0.1
//
// The first three are wired from host to host. [Start] boots them, [Lab.Close]
// ends them and leaves nothing; should the program die first, the kernel kills
// them with it. The commands in a host go through the agent, see package
// cmd/hawser/agent.
//
// deps.sh installs what is needed and unpacks the kernel into a cache.
package rdmalab
