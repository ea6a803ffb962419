package engine_test

import (
	"context"
	"log"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-transport/hawser/engine"
)

// A program that serves HTTP anyway shows its engine there.
func ExampleHandler() {
	registry := prometheus.NewRegistry()
	e, err := engine.Open(context.Background(), engine.Config{
		Admin: engine.AdminConfig{Socket: "auto"}, // for `hawser peers` and the like
	}, engine.WithMetrics(registry))
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/hawser/", http.StripPrefix("/hawser", engine.Handler(e)))
	log.Fatal(http.ListenAndServe("127.0.0.1:7480", mux))
}
