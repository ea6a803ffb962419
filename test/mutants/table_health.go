package main

// healths are the guards of who is to blame for what, for how long, and which way is
// tried next.
var healths = []mutant{
	{"ranker: paused ones are passed over", "engine/internal/ranker/ranker.go",
		"\t\t\tcontinue\n",
		"", "engine/internal/ranker", "TestOrder", false},
	{"ranker: three paths of a transport", "engine/internal/ranker/ranker.go",
		"\t\treturn taken > MaxPaths",
		"\t\treturn false", "engine/internal/ranker", "TestOrder", false},
}
