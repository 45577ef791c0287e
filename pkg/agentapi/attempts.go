package agentapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// maxNoteBytes bounds a progress note.
const maxNoteBytes = 1000

// start decides whether the work may touch its device.
func (a *API) start(c echo.Context) error {
	call, err := caller(c)
	if err != nil {
		return err
	}
	req, err := read[protocol.StartRequest](c)
	if err != nil {
		return err
	}
	var f berth.Faults
	holders(&f, len(req.Items), func(i int) protocol.Holder { return req.Items[i] })
	if err := f.Err(); err != nil {
		return err
	}
	answers, transitions, err := a.Store.StartAttempts(c.Request().Context(), store.StartParams{
		AgentCall: call, Items: storeHolders(req.Items),
	})
	a.log(transitions)
	return answerLeases(c, answers, err)
}

// renew extends leases.
func (a *API) renew(c echo.Context) error {
	call, err := caller(c)
	if err != nil {
		return err
	}
	req, err := read[protocol.RenewRequest](c)
	if err != nil {
		return err
	}
	var f berth.Faults
	holders(&f, len(req.Items), func(i int) protocol.Holder { return req.Items[i].Holder })
	p := store.RenewParams{AgentCall: call}
	for i, item := range req.Items {
		progress := -1.0
		if item.Progress != nil {
			if progress = *item.Progress; progress < 0 || progress > 1 {
				f.Add(fmt.Sprintf("items[%d].progress", i), "out of range", "use 0 to 1, or leave it out")
			}
		}
		if len(item.Note) > maxNoteBytes {
			f.Add(fmt.Sprintf("items[%d].note", i), "it is too long", fmt.Sprintf("send at most %d bytes", maxNoteBytes))
		}
		p.Items = append(p.Items, store.RenewItem{
			Holder: toHolder(item.Holder), Progress: progress, Note: redact.NewString(clean(item.Note)),
		})
	}
	if err := f.Err(); err != nil {
		return err
	}
	done, err := a.renewals.do(c.Request().Context(), p)
	if err == nil {
		err = done.Err
	}
	a.log(done.Transitions)
	return answerLeases(c, done.Answers, err)
}

// release hands unstarted attempts back.
func (a *API) release(c echo.Context) error {
	call, err := caller(c)
	if err != nil {
		return err
	}
	req, err := read[protocol.ReleaseRequest](c)
	if err != nil {
		return err
	}
	var f berth.Faults
	holders(&f, len(req.Items), func(i int) protocol.Holder { return req.Items[i] })
	checkReason(&f, "reason", req.Reason)
	if err := f.Err(); err != nil {
		return err
	}
	answers, transitions, err := a.Store.ReleaseAttempts(c.Request().Context(), store.ReleaseParams{
		AgentCall: call, Items: storeHolders(req.Items), Reason: req.Reason, Draining: req.Draining,
	})
	a.log(transitions)
	return answerLeases(c, answers, err)
}

func storeHolders(items []protocol.Holder) []store.Holder {
	out := make([]store.Holder, len(items))
	for i, h := range items {
		out[i] = toHolder(h)
	}
	return out
}

func answerLeases(c echo.Context, answers []store.LeaseAnswer, err error) error {
	if err != nil {
		return err
	}
	res := protocol.LeaseResponse{Items: make([]protocol.LeaseAnswer, len(answers))}
	for i, x := range answers {
		res.Items[i] = protocol.LeaseAnswer{
			Attempt: x.Attempt, Status: string(x.Status), LeaseLeft: protocol.MillisOf(x.Left), Cancel: x.Cancel,
		}
	}
	return c.JSON(http.StatusOK, res)
}

// complete ends attempts with what the agent saw.
func (a *API) complete(c echo.Context) error {
	call, err := caller(c)
	if err != nil {
		return err
	}
	req, err := read[protocol.CompleteRequest](c)
	if err != nil {
		return err
	}
	var f berth.Faults
	holders(&f, len(req.Items), func(i int) protocol.Holder { return req.Items[i].Holder })
	p := store.CompleteParams{AgentCall: call}
	for i, item := range req.Items {
		checked, err := completion(&f, fmt.Sprintf("items[%d]", i), item)
		if err != nil {
			return err
		}
		p.Items = append(p.Items, checked)
	}
	if err := f.Err(); err != nil {
		return err
	}
	done, err := a.completions.do(c.Request().Context(), p)
	if err == nil {
		err = done.Err
	}
	a.log(done.Transitions)
	if err != nil {
		return err
	}
	res := protocol.CompleteResponse{Items: make([]protocol.CompleteAnswer, len(done.Answers))}
	for i, x := range done.Answers {
		res.Items[i] = protocol.CompleteAnswer{
			Attempt: x.Attempt, Status: string(x.Status), Outcome: x.Outcome,
			MissingArtifacts: x.MissingArtifacts, LogNext: x.LogNext,
		}
	}
	return c.JSON(http.StatusOK, res)
}

// completion checks one item and gives it its digest.
func completion(f *berth.Faults, path string, item protocol.CompleteItem) (store.CompleteItem, error) {
	if !item.Outcome.ReportableByAgent() {
		f.Add(path+".outcome", "an agent cannot report it", "use succeeded, failed, infra_failed, timed_out or cancelled")
	}
	checkReason(f, path+".reason", item.Reason)
	if len(item.Message) > store.MaxMessageBytes {
		f.Add(path+".message", "it is too long", fmt.Sprintf("send at most %d bytes", store.MaxMessageBytes))
	}
	if len(item.Result) > store.MaxResultBytes {
		f.Add(path+".result", "it is too long", fmt.Sprintf("send at most %d bytes; larger things are artifacts", store.MaxResultBytes))
	}
	if item.LogBytes < 0 || item.LogBytes > store.MaxLogBytes {
		f.Add(path+".log_bytes", "out of range", fmt.Sprintf("a log has at most %d bytes", int64(store.MaxLogBytes)))
	}
	checkListed(f, path+".artifacts", item.Artifacts)
	result, err := canonical(item.Result)
	if err != nil {
		f.Add(path+".result", "it is no JSON", "send one JSON value")
	}
	item.Message, item.Result = clean(item.Message), result
	if len(item.Artifacts) == 0 {
		item.Artifacts = nil // {} and nothing are the same
	}
	digest, err := digestOf(item)
	if err != nil {
		return store.CompleteItem{}, err
	}
	return store.CompleteItem{
		Holder: toHolder(item.Holder), Outcome: item.Outcome, Reason: item.Reason, Message: redact.NewString(item.Message),
		Result: redact.NewBytes(result), LogBytes: item.LogBytes, Artifacts: item.Artifacts, DeviceClean: item.DeviceClean,
		Digest: digest,
	}, nil
}

func checkListed(f *berth.Faults, path string, artifacts map[string]string) {
	if len(artifacts) > store.MaxArtifacts {
		f.Add(path, fmt.Sprintf("%d artifacts", len(artifacts)), fmt.Sprintf("an attempt leaves at most %d", store.MaxArtifacts))
		return
	}
	for name, digest := range artifacts {
		if !berth.ValidArtifactName(name) {
			f.Add(path, fmt.Sprintf("%q is no artifact's name", berth.Clip(name, 40)), "use letters, digits and . _ -, at most 120")
		} else if !validDigest(digest) {
			f.Add(path+"."+name, "it is no SHA-256 in lower-case hex", "send the digest that the upload carried")
		}
	}
}

// canonical is a JSON value in one spelling: members sorted, no spaces, numbers
// as they were written. Nothing and null are nothing.
func canonical(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if v == nil {
		return nil, nil
	}
	return encode(v)
}

// digestOf tells a repeated completion from another one: the SHA-256 of the
// item's canonical JSON.
func digestOf(item protocol.CompleteItem) ([32]byte, error) {
	b, err := encode(item)
	if err != nil {
		return [32]byte{}, fmt.Errorf("encode a completion: %w", err)
	}
	return sha256.Sum256(b), nil
}

func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
