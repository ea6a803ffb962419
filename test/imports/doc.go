// Package imports holds the rule that keeps Hawser's parts apart
// (docs/architecture.md): examples, cmd -> engine -> sdk <- plugins. It looks
// at what packages import and at the types in exported signatures, not at
// tests, which may use what they like.
package imports
