package httpapi

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-dev/berth/pkg/berth"
)

// cursors are what pages go on after, as the lists judge them.
func cursors() []func(string) bool {
	return []func(string) bool{berth.ValidID, berth.ValidName, berth.ValidDigest, validEventCursor, validPluginCursor}
}

// asked is the context of a request for a list.
func asked(path, query string) context.Context {
	return context.WithValue(context.Background(), requestKey{}, request{url: &url.URL{Path: path, RawQuery: query}})
}

// FuzzPageToken: a cursor comes back out of its token in the same list under the
// same filters, whatever the size of the page, and in no other list; whatever else
// is brought as a token is refused as page_token, with a remedy, and not quoted. A
// cursor that passes is text that a database can be asked for.
func FuzzPageToken(f *testing.F) {
	for kind, cursor := range []string{
		"01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10", "lab-1", strings.Repeat("0a", 32), "42", "work@1.2.0", "", "p@\x00", "p@\xff", "+5", "-1", "007", "9223372036854775808",
	} {
		kind := uint8(min(kind, 4))
		f.Add(kind, "/api/v1/tasks", "state=queued&pool=default", "state=queued", cursor, "AAAA")
		f.Add(kind, "/api/v1/audit", "", "page_size=2", cursor, asked("/api/v1/audit", "").Value(requestKey{}).(request).tokenOf(cursor))
		f.Add(kind, "/api/v1/audit", "", "", cursor, asked("/api/v1/audit", "").Value(requestKey{}).(request).tokenOf(cursor)+"\n")
	}
	f.Fuzz(func(t *testing.T, kind uint8, path, query, other, cursor, brought string) {
		if _, err := url.ParseQuery(query); err != nil {
			return // refused before
		}
		if _, err := url.ParseQuery(other); err != nil {
			return
		}
		valid := cursors()[int(kind)%len(cursors())]
		here := asked(path, query)
		if valid(cursor) {
			if !utf8.ValidString(cursor) || strings.ContainsRune(cursor, 0) {
				t.Fatalf("the cursor %q passes", cursor)
			}
			token := pageToken(here, cursor)
			if len(token) > 400 || token != url.QueryEscape(token) {
				t.Fatalf("the token %q does not fit a URL, or the API's bound", token)
			}
			for _, same := range []string{"", "&page_size=7", "&page_token=" + token} {
				if page, err := pageOf(asked(path, query+same), 7, token, valid); err != nil || page.After != cursor || page.Size != 7 {
					t.Fatalf("%q became %+v: %v", cursor, page, err)
				}
			}
			elsewhere := asked(path, other)
			if _, err := pageOf(elsewhere, 0, token, valid); (err == nil) != alike(query, other) {
				t.Fatalf("the token of %q for %q: %v", query, other, err)
			}
			if _, err := pageOf(asked(path+"/x", query), 0, token, valid); err == nil {
				t.Fatal("a token of another list passes")
			}
		}
		page, err := pageOf(here, 0, brought, valid)
		var invalid *berth.InvalidError
		switch {
		case brought == "":
			if err != nil || page.After != "" {
				t.Fatalf("the first page: %+v, %v", page, err)
			}
		case err == nil:
			if !valid(page.After) || pageToken(here, page.After) != brought {
				t.Fatalf("%q became %+v", brought, page)
			}
		case !errors.As(err, &invalid) || invalid.Fields[0].Path != "page_token" || invalid.Fields[0].Remedy == "" || page.After != "":
			t.Fatalf("%q: %+v, %v", brought, page, err)
		case len(brought) > 20 && strings.Contains(err.Error(), brought):
			t.Fatal("the fault quotes the token")
		}
	})
}

// alike: the queries have the same filters, in whatever order of names.
func alike(a, b string) bool {
	filters := func(query string) string {
		q, _ := url.ParseQuery(query)
		q.Del("page_size")
		q.Del("page_token")
		return q.Encode()
	}
	return filters(a) == filters(b)
}
