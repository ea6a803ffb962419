package main

import (
	"bufio"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// answerIn bounds a request.
const answerIn = 20 * time.Second

// listen takes requests at the socket until the process ends: a word a
// connection, answered with text, whose first word is "error" for one. A socket
// that an earlier process left is replaced.
func listen(path string, b *book) error {
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() == fs.ModeSocket {
		_ = os.Remove(path)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn, b)
		}
	}()
	return nil
}

func serve(conn net.Conn, b *book) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerIn))
	word, err := bufio.NewReader(conn).ReadString('\n')
	var out string
	if err == nil {
		out, err = obey(strings.TrimSpace(word), b)
	}
	if err != nil {
		out = "error " + err.Error()
	}
	_, _ = fmt.Fprintln(conn, strings.TrimSuffix(out, "\n"))
}

func obey(word string, b *book) (string, error) {
	switch word {
	case "connected":
		return strconv.Itoa(len(b.connected())), nil
	case "error":
		return b.moveBusy(verbs.QP.ToError)
	case "reset":
		return b.move(verbs.QP.ToReset)
	case "hold":
		return word, b.hold()
	case "release":
		b.release()
	default:
		return "", fmt.Errorf("unknown request %q", word)
	}
	return word, nil
}
