package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/url"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// pageOf reads a page request. A token is the mark of its list (listMark) and
// the cursor, in base64, so that nobody builds on what it says: a token of
// another list, or of this one under another filter, is refused instead of
// passing rows over in silence. It is no signature: a forged one gets its maker
// another page of what it may see anyhow. valid judges the cursor.
func pageOf(ctx context.Context, size PageSize, token PageToken, valid func(string) bool) (store.Page, error) {
	if size == 0 {
		size = 50
	}
	page := store.Page{Size: size}
	if token == "" {
		return page, nil
	}
	cursor, ok := requestOf(ctx).cursorOf(token)
	if !ok || !valid(cursor) {
		return page, berth.Invalid("page_token", "is not a page token of this list and these filters", "use next_page_token of the page before with the same filters, or leave it out for the first page")
	}
	page.After = cursor
	return page, nil
}

// pageToken is the token of the page that follows a cursor in the list that the
// request asked for.
func pageToken(ctx context.Context, cursor string) string {
	if cursor == "" {
		return ""
	}
	return requestOf(ctx).tokenOf(cursor)
}

func (r request) tokenOf(cursor string) string {
	return base64.RawURLEncoding.EncodeToString(append(r.listMark(), cursor...))
}

// cursorOf is the cursor of a token that tokenOf made of it; one of another list
// and another spelling (base64 skips line ends) is none.
func (r request) cursorOf(token string) (string, bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	cursor, ours := bytes.CutPrefix(raw, r.listMark())
	return string(cursor), err == nil && ours && r.tokenOf(string(cursor)) == token
}

// listMark is the same for two requests of one list under the same filters.
// The order of the parameters does not matter, nor does the size of pages.
func (r request) listMark() []byte {
	if r.url == nil {
		return nil
	}
	query := r.url.Query()
	query.Del("page_size")
	query.Del("page_token")
	sum := sha256.Sum256([]byte((&url.URL{Path: r.url.Path, RawQuery: query.Encode()}).String()))
	return sum[:8]
}
