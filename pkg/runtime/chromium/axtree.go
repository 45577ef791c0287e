package chromium

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/berth-dev/berth/pkg/runtime"
)

// axNode is a node of the browser's accessibility tree.
type axNode struct {
	ID       string   `json:"nodeId"`
	Parent   string   `json:"parentId"`
	Ignored  bool     `json:"ignored"`
	Role     axValue  `json:"role"`
	Name     axValue  `json:"name"`
	Value    axValue  `json:"value"`
	Children []string `json:"childIds"`
	Backend  int64    `json:"backendDOMNodeId"`
}

// axValue is a text, number or truth value, kept as text.
type axValue string

// UnmarshalJSON reads the protocol's AXValue.
func (v *axValue) UnmarshalJSON(b []byte) error {
	var raw struct {
		Value any `json:"value"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	switch value := raw.Value.(type) {
	case nil:
		*v = ""
	case string:
		*v = axValue(value)
	default:
		*v = axValue(fmt.Sprint(value))
	}
	return nil
}

// UITree implements runtime.Screen: the accessibility tree of the main frame,
// without nodes that assistive technology would not see.
func (s *session) UITree(ctx context.Context) (*runtime.UINode, error) {
	var tree struct {
		Nodes []axNode `json:"nodes"`
	}
	if err := s.retryStale(ctx, func() error {
		return s.call(ctx, "Accessibility.getFullAXTree", object{}, &tree)
	}); err != nil {
		return nil, err
	}
	bounds, err := s.bounds(ctx)
	if err != nil {
		return nil, err
	}
	byID := make(map[string]*axNode, len(tree.Nodes))
	root := ""
	for i := range tree.Nodes {
		n := &tree.Nodes[i]
		byID[n.ID] = n
		if n.Parent == "" && root == "" {
			root = n.ID
		}
	}
	out := build(byID, root, bounds, 0)
	if len(out) == 1 {
		return out[0], nil
	}
	return &runtime.UINode{Role: "RootWebArea", Children: out}, nil
}

// maxDepth bounds the tree, so that a page cannot exhaust the stack.
const maxDepth = 500

// build returns the node as a list: itself, or its children where the node
// itself says nothing.
func build(byID map[string]*axNode, id string, bounds map[int64]runtime.Bounds, depth int) []*runtime.UINode {
	n := byID[id]
	if n == nil || depth > maxDepth {
		return nil
	}
	delete(byID, id) // each node once, whatever the browser says
	var children []*runtime.UINode
	for _, c := range n.Children {
		children = append(children, build(byID, c, bounds, depth+1)...)
	}
	role := string(n.Role)
	if role == "InlineTextBox" {
		return nil // repeats its parent, line by line
	}
	if n.Ignored || (n.Name == "" && n.Value == "" && (role == "none" || role == "generic" || role == "")) {
		return children
	}
	node := &runtime.UINode{Role: role, Name: string(n.Name), Value: string(n.Value), Children: children}
	if b, ok := bounds[n.Backend]; ok {
		node.Bounds = &b
	}
	return []*runtime.UINode{node}
}

// bounds returns where the nodes of the main document are, by backend node id,
// from one snapshot instead of one question a node.
func (s *session) bounds(ctx context.Context) (map[int64]runtime.Bounds, error) {
	var snap struct {
		Documents []struct {
			ScrollX float64 `json:"scrollOffsetX"`
			ScrollY float64 `json:"scrollOffsetY"`
			Nodes   struct {
				Backend []int64 `json:"backendNodeId"`
			} `json:"nodes"`
			Layout struct {
				NodeIndex []int       `json:"nodeIndex"`
				Bounds    [][]float64 `json:"bounds"`
			} `json:"layout"`
		} `json:"documents"`
	}
	if err := s.retryStale(ctx, func() error {
		return s.call(ctx, "DOMSnapshot.captureSnapshot", object{"computedStyles": []string{}}, &snap)
	}); err != nil {
		return nil, err
	}
	out := map[int64]runtime.Bounds{}
	if len(snap.Documents) == 0 {
		return out, nil
	}
	doc := snap.Documents[0]
	for i, node := range doc.Layout.NodeIndex {
		if node < 0 || node >= len(doc.Nodes.Backend) || i >= len(doc.Layout.Bounds) || len(doc.Layout.Bounds[i]) != 4 {
			continue
		}
		b := doc.Layout.Bounds[i]
		round := func(f float64) float64 { return math.Round(f*100) / 100 }
		out[doc.Nodes.Backend[node]] = runtime.Bounds{
			X: round(b[0] - doc.ScrollX), Y: round(b[1] - doc.ScrollY), Width: round(b[2]), Height: round(b[3]),
		}
	}
	return out, nil
}
