//go:build !linux

package link

import "testing"

func addSocketKinds(map[string]func(t *testing.T) pair) {}

func queueOf(c Carrier) *queue { return &c.(*stream).out }

const childEnv = "HAWSER_LINK_TEST_CHILD"

func runChild(string) {}
