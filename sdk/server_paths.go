package sdk

import "github.com/hawser-transport/hawser/sdk/internal/link"

// pathsNews is the way of [Config.PathsChanged] over the link. However often
// the transport calls it, one record waits for room at a time, and says it for
// all calls before it.
type pathsNews struct {
	some chan struct{} // a token: there is news
}

func newPathsNews() pathsNews { return pathsNews{make(chan struct{}, 1)} }

// tell is Config.PathsChanged.
func (n pathsNews) tell() {
	select {
	case n.some <- struct{}{}:
	default:
	}
}

// tellPaths sends the news until the link ends.
func (s *server) tellPaths() {
	select {
	case <-s.linkOpen:
	case <-s.linkGone:
		return
	}
	for {
		select {
		case <-s.paths.some:
			// Its failure is the link's end.
			_, _ = s.carrier.Send([]link.Record{{Type: link.PathsChanged}}, link.Wait)
		case <-s.linkGone:
			return
		}
	}
}
