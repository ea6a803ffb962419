//go:build linux && hawser_address_only

package mnnvltransport

const addressOnly = true
