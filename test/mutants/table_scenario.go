package main

import (
	"slices"
	"strings"
)

// scenarios are guards that the scenarios, with real processes, have to miss,
// too: what their tests look for does come without them.
var scenarios = slices.Concat(fences("tcp", "source killed"), fences("rpcfallback", "source killed"), fences("rdma", "cancelled"), []mutant{
	{"scenario: the new descriptor counts", "engine/segment_source.go",
		"\ts.desc, s.newest = d, max(s.newest, d.Version)\n",
		"\tif s.newest = max(s.newest, d.Version); s.desc == nil {\n\t\ts.desc = d\n\t}\n",
		"test/scenarios", "TestMemoryAWithdrawnRegionAtTheSameAddress", false},
	{"scenario: a dead provider's memory is given back", "engine/segment_source.go",
		"\t\t\ts.takeBack(inst, sdk.Capability{})\n",
		"\t\t\t_ = inst\n", "test/scenarios", "TestMemoryOfAProviderThatIsGone", false},
	{"scenario: an op waits for its event", "engine/move_channel.go",
		", o.localOffset+c.span.Offset, o.event",
		", o.localOffset+c.span.Offset, nil", "test/scenarios", "TestGPUMemoryIsSentAfterItsEvent", false},
})

// fences are both fences over a transport. What ends the op tells which of them
// it takes: a target that is stopped for a killed source, or a cancelled op,
// still writes what it has been sent, and so does a reader that is stopped. The
// simulated RDMA, which is the plugin's process, forgets what a killed source
// has sent.
func fences(transport, write string) []mutant {
	part := func(name string) string {
		return "TestMemoryAfterAnOpHasEndedItsDestinationIsTheOwners/^" + transport + "$/^" + strings.ReplaceAll(name, " ", "_") + "$: old bytes came back"
	}
	return []mutant{
		{"scenario: fence at the target, " + transport, "engine/move_fence.go",
			"m.fenced(ch, remote, m.fenceThere(ch))",
			"m.fenced(ch, remote, nil)", "test/scenarios", part("write, target stopped, " + write), false},
		{"scenario: local fence, " + transport, "engine/move_timer.go",
			"\t\tif m.overdueLocked(ch, now) {\n\t\t\tm.closeLocked(ch)\n",
			"\t\tif m.overdueLocked(ch, now) {\n\t\t\tm.endedLocked(ch, nil, true)\n", "test/scenarios", part("read, reader stopped, cancelled"), false},
	}
}
