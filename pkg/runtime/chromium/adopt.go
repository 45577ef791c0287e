package chromium

import (
	"context"
	"encoding/json"
	"time"
)

// adopt lets go on what the page brought up and what waits to be let go: a frame
// in another process, which gets the same guard as the page, or a worker.
func (s *session) adopt(raw json.RawMessage) {
	var p struct {
		Session string `json:"sessionId"`
		Target  struct {
			Type string `json:"type"`
		} `json:"targetInfo"`
	}
	if json.Unmarshal(raw, &p) != nil {
		return
	}
	ctx, stop := context.WithTimeout(s.life, 10*time.Second)
	defer stop()
	if p.Target.Type == "iframe" {
		s.mu.Lock()
		s.children = append(s.children, p.Session)
		s.mu.Unlock()
		s.browser.conn.subscribe(p.Session, s.enqueue)
		// A frame that cannot be guarded stays paused.
		if s.callOn(ctx, p.Session, "Fetch.enable", documentsOnly(), nil) != nil ||
			s.callOn(ctx, p.Session, "Target.setAutoAttach", attachPaused(), nil) != nil {
			return
		}
	}
	_ = s.callOn(ctx, p.Session, "Runtime.runIfWaitingForDebugger", nil, nil)
}

// onWindow closes each window that a page opened: a device shows one page, and a
// second one in front of it would keep it from being drawn.
func (b *browser) onWindow(e event) {
	var p struct {
		Target struct {
			ID     string `json:"targetId"`
			Opener string `json:"openerId"`
		} `json:"targetInfo"`
	}
	if e.method != "Target.targetCreated" || json.Unmarshal(e.params, &p) != nil || p.Target.Opener == "" {
		return
	}
	go func() { // ends with the browser at the latest
		ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
		defer stop()
		_ = b.conn.call(ctx, "", "Target.closeTarget", object{"targetId": p.Target.ID}, nil)
	}()
}
