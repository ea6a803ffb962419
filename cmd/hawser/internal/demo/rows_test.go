package demo

import (
	"os"
	"strings"
	"testing"
)

// TestReadmeHasTheRows: in the table's order, and none that is no more.
func TestReadmeHasTheRows(t *testing.T) {
	text, err := os.ReadFile("../../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "| row | what happens |\n|---|---|\n")
	if !ok {
		t.Fatal("README.md has no table of rows")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	lines := strings.Split(table, "\n")
	rows := Rows()
	if len(lines) != len(rows) {
		t.Fatalf("README.md has %d rows, the demo %d", len(lines), len(rows))
	}
	for i, r := range rows {
		if !strings.HasPrefix(lines[i], "| "+r.Name+" | ") {
			t.Errorf("row %d is %q, README.md has %s", r.Number, r.Name, lines[i])
		}
	}
}
