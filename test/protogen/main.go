// Command protogen compiles the repository's .proto files with the generators
// that go.mod pins, without a protoc binary: protocompile parses, and
// protoc-gen-go and protoc-gen-go-grpc, run as go tools, write the code beside
// each source. Run it from the repository's root: go run ./test/protogen.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run() error {
	var sources []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".proto") {
			sources = append(sources, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		return err
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(context.Background(), sources...)
	if err != nil {
		return err
	}
	req := &pluginpb.CodeGeneratorRequest{FileToGenerate: sources, Parameter: proto.String("paths=source_relative")}
	seen := map[string]bool{}
	for _, f := range files {
		req.ProtoFile = appendWithImports(req.ProtoFile, f, seen)
	}
	for _, generator := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		if err := generate(generator, req); err != nil {
			return fmt.Errorf("%s: %w", generator, err)
		}
	}
	return nil
}

// appendWithImports adds f after everything it imports, as the plugin
// protocol demands.
func appendWithImports(list []*descriptorpb.FileDescriptorProto, f protoreflect.FileDescriptor, seen map[string]bool) []*descriptorpb.FileDescriptorProto {
	if seen[f.Path()] {
		return list
	}
	seen[f.Path()] = true
	imports := f.Imports()
	for i := 0; i < imports.Len(); i++ {
		list = appendWithImports(list, imports.Get(i).FileDescriptor, seen)
	}
	return append(list, protodesc.ToFileDescriptorProto(f))
}

func generate(generator string, req *pluginpb.CodeGeneratorRequest) error {
	in, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "tool", generator)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	var resp pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &resp); err != nil {
		return err
	}
	if resp.Error != nil {
		return fmt.Errorf("%s", resp.GetError())
	}
	for _, f := range resp.File {
		if err := os.WriteFile(f.GetName(), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
