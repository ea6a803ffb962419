// Package streams is what the transports over stream sockets have in common:
// their listener and its settings, who is let in, the beginning of their
// endpoints, and their end. How bytes are carried is each transport's own.
package streams
