// Package nvml tells which GPUs NVLink connects: within this machine, and
// across machines of one fabric.
//
// It asks NVIDIA's management library, which is opened at run time; a program
// that has this package starts without it. Nothing here is needed for moving
// memory: it says beforehand what can work, and to people why something does
// not.
package nvml
